"""Prints how many bytes 40 training steps leave behind, after 100 others.

python -m marlaas.tests.engines.training_memory MODEL SCRATCH
"""

import gc
import sys
import tracemalloc
from pathlib import Path

from marlaas.engines import base_model
from marlaas.engines.trainer import Trainer
from marlaas.tests.engines.trainer_bench import SPEC, Bench, batch_number


def main() -> None:
    model, scratch = map(Path, sys.argv[1:])
    bench = Bench(Trainer(base_model.load(model)), scratch)
    start, batch, out = bench.start(), batch_number(0), bench.fresh()

    def steps(count: int) -> int:
        for _ in range(count):
            bench.trainer.train(SPEC, batch, 0, start.adapter, start.optimizer, out)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    warm = steps(100)  # by then the pools of freed objects have nearly their size
    sys.stdout.write(f"{steps(40) - warm}\n")


if __name__ == "__main__":
    main()
