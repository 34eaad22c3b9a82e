"""Sample rollouts with an engine of your own: here, transformers' `generate`.

python examples/own_engine.py
"""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from opasd import OPASDArguments, OPASDConfig, OPASDTrainer
from opasd.config import DataConfig, SamplingConfig
from opasd.data.sets import load_set
from opasd.lab import model_path
from opasd.rollout.engine import Completion


class GenerateEngine:
    """Draws each completion by itself, with its own seed, from the weights of this moment."""

    def __init__(self, model: PreTrainedModel, stop: int) -> None:
        self.model, self.stop, self.drawn = model, stop, 0

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Completion]:
        completions = []
        self.model.eval()
        for prompt, seed in zip(prompts, seeds, strict=True):
            ids = torch.tensor([list(prompt)], device=self.model.device)
            devices = [self.model.device] if self.model.device.type == "cuda" else []
            with torch.random.fork_rng(devices), torch.no_grad():
                torch.manual_seed(seed)
                output = self.model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, eos_token_id=self.stop,
                    temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
                    max_new_tokens=sampling.max_new_tokens,
                )  # fmt: skip
            completions.append(Completion.ended(output[0, len(prompt) :].tolist(), frozenset({self.stop})))
        self.model.train()
        self.drawn += len(completions)
        return completions


def main(output: str = "runs/own_engine", steps: int = 5) -> OPASDTrainer:
    """Train the embedded model on rollouts of this engine."""
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    trainer = OPASDTrainer(
        model=model,
        processing_class=tokenizer,
        args=OPASDArguments(output, max_steps=steps, gradient_accumulation_steps=8, learning_rate=1e-4),
        config=OPASDConfig.model_validate({"rollout": {"max_new_tokens": 80}}),
        train_dataset=load_set(DataConfig(source="lab", sample=64), "train"),
        engine=GenerateEngine(model, tokenizer.eos_token_id),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
