"""The declaration of one MoE family: the names in vLLM's model file by which a model is cut."""

from __future__ import annotations

from dataclasses import dataclass

#: Names that every decoder model file looks up and that an FFN rank never needs.
COMMON_UNUSED = ("RMSNorm", "VocabParallelEmbedding", "ParallelLMHead")


@dataclass(frozen=True, slots=True)
class MoE:
    """One family of MoE models, as data.

    arch: architecture name in ``config.json``; ``aliases`` are further ones that the same classes serve.
    module: vLLM module that defines the model; the names below are looked up in it and in ``also``, further modules
    whose classes the model builds. ``Class.attribute`` is a name that a class body binds and its methods look up.
    attention: classes that the FFN role does not build.
    experts: name of the factory that the attention role replaces by a remote stand-in.
    dense: classes of a whole dense FFN, replaced by stand-ins on the attention role.
    block: class of a sparse FFN that calls its gate itself. It is exchanged as a whole, so that the gate stays on the
        FFN role; empty where the block hands its gate to the experts.
    ffn: attribute of a decoder layer that holds its FFN. inner: attribute of a sparse FFN that holds the experts.
    unused: names that the FFN role does not build either (norms, embeddings, LM head).
    overlap: parameter-name parts that both roles hold on purpose; none where a block is exchanged as a whole.
    needs: modules beside vLLM's own that its file imports and that an installation of vLLM may lack.
    vllm: tested range of vLLM releases.
    """

    arch: str
    module: str
    attention: tuple[str, ...]
    experts: str
    dense: tuple[str, ...]
    vllm: str
    ffn: str = "mlp"
    inner: str = "experts"
    block: str = ""
    also: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    unused: tuple[str, ...] = COMMON_UNUSED
    overlap: tuple[str, ...] = ("gate",)
    needs: tuple[str, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules in which names are looked up."""
        return (self.module, *self.also)

    @property
    def rebound(self) -> tuple[str, ...]:
        """All names that one role or the other rebinds and every vLLM in range must have."""
        return (*self.attention, self.experts, *self.dense, *((self.block,) if self.block else ()))

    @property
    def archs(self) -> tuple[str, ...]:
        """All architecture names that this declaration serves."""
        return (self.arch, *self.aliases)

    def overlaps(self, parameter: str) -> bool:
        """Whether both roles hold this parameter on purpose."""
        return not self.block and any(f".{part}." in parameter for part in self.overlap)


@dataclass(frozen=True, slots=True)
class Refused:
    """A family that the cut does not carry: whoever serves it is told so before anything is loaded.

    archs: architecture names in ``config.json``. module: vLLM module that defines them.
    reason, instead: ends of the sentence "AFD does not carry ...: reason; instead."
    """

    archs: tuple[str, ...]
    module: str
    reason: str
    instead: str

    def sentence(self, arch: str) -> str:
        """What is said of ``arch`` at start-up."""
        return f"AFD does not carry {arch} ({self.module}): {self.reason}; {self.instead}."
