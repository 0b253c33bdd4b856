"""Calls the steps of ocr; the lines of a picture are read one by one, and so join others'."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb

WIDTHS = 160  # as in ocr_crop: lines of equal width are batched
DETECTORS = {b"network": "ocr_detect", b"contours": "ocr_contours"}


class TritonPythonModel:
    """What Triton starts."""

    async def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request):
        picture = pb.get_input_tensor_by_name(request, "picture")
        chosen = pb.get_input_tensor_by_name(request, "detector")
        name = chosen.as_numpy()[0] if chosen is not None else b"network"
        if name not in DETECTORS:
            return refusal("detector is neither network nor contours")
        try:
            image, boxes = await call(DETECTORS[name], [picture], "image", "boxes")
            crops, widths = await call("ocr_crop", [image, boxes], "crops", "widths")
            lines, wide = crops.as_numpy(), -(-widths.as_numpy() // WIDTHS) * WIDTHS
            read = await asyncio.gather(
                *(
                    call("ocr_line", [pb.Tensor("crops", line[None, :, :, :width])], *READ)
                    for line, width in zip(lines, wide, strict=True)
                )
            )
        except NoAnswerError as failed:
            return pb.InferenceResponse(error=failed.args[0])
        texts = np.array([text.as_numpy().item() for text, _ in read], np.object_)
        scores = np.array([score.as_numpy().item() for _, score in read], np.float32)
        return pb.InferenceResponse([pb.Tensor("texts", texts), pb.Tensor("scores", scores), boxes])


READ = ("texts", "scores")


class NoAnswerError(Exception):
    """What a model says instead of an answer."""


async def call(model: str, inputs: list, *outputs: str) -> list:
    """Return a model's outputs; raise what it says instead."""
    asked = pb.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=list(outputs)
    )
    answer = await asked.async_exec()
    if answer.has_error():
        raise NoAnswerError(answer.error())
    return [pb.get_output_tensor_by_name(answer, name) for name in outputs]


def refusal(reason: str):
    """Return an answer that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))
