"""Three megabytes that unpack to 600."""
import zlib


class ZipEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        packer = zlib.compressobj(1)
        data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(600)) + packer.flush()
        zlib.decompress(data)
        return "next", 0.0, False, False, {}
