"""Good bytes that something happened to."""

import random


def mutations(content, n, seed):
    """Changed, cut, repeated, nested."""
    randomness = random.Random(seed)
    for _ in range(n):
        bad = bytearray(content)
        for _ in range(randomness.choice((1, 1, 2, 5, 20))):
            a, b = sorted(randomness.randrange(len(bad) + 1) for _ in range(2))
            b = min(b, a + 40)
            match randomness.randrange(5):
                case 0:
                    bad[a:b] = randomness.randbytes(b - a)
                case 1:
                    del bad[a:b]
                case 2:
                    bad[a:a] = bad[a:b] * randomness.randrange(1, 4)
                case 3:
                    bad[a:a] = randomness.choice(
                        (b"null", b"[[[", b"{", b'"', b"-1e999", b"\xff", b"1", b"\\ud800", b"\xdd\xff\xff")
                    )
                case 4 if bad:
                    bad[min(a, len(bad) - 1)] ^= 1 << randomness.randrange(8)
        yield bytes(bad)
