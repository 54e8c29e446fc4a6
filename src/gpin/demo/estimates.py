"""What a difference shows, in words."""

__all__ = ["verdict"]


def verdict(mean: float, stderr: float) -> str:
    """A paired difference GP − VAE in words that claim no more than it shows.

    Example:
        >>> verdict(0.2, 0.4)
        '+0.20 ± 0.40 nats, not significant (0.5 standard errors).'
    """
    errors = abs(mean) / stderr if stderr > 0 else 0.0
    words = "not significant" if errors < 2 else f"in favour of the {'GP model' if mean > 0 else 'plain VAE'}"
    return f"{mean:+.2f} ± {stderr:.2f} nats, {words} ({errors:.1f} standard errors).".replace("-", "−")
