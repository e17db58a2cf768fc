"""torch: base models, samplers, trainer, objectives. Knows no Temporal, no NATS and no object store."""

import os

# MKL reads this at its first product. Strict reproducibility gives a row of a product the same bits however
# many rows and threads there are; measured on AVX-512, at no cost to speed. Without it a product over 1536
# summands differs between 1 and 2 threads.
os.environ["MKL_CBWR"] = "AUTO,STRICT"

# Read when CUDA starts; without it cuBLAS may add in another order from call to call.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
