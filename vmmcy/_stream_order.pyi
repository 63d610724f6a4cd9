def order_behind_device(stream: int, device_id: int) -> bool:
    """Have a stream go on only when all that the device was given up to now is done.

    Ends every capture on the device: ask first whether anyone captures.

    Parameters
    ----------
    stream : int
        The raw handle of one of the device's streams.
    device_id : int
        The device; its current context, else its primary one.

    Returns
    -------
    bool
        False where a stream of the context was being captured: the stream is as it was.

    Raises
    ------
    CudaDriverError
        The driver refused. The stream is as it was, or waits for no longer than it has to.

    Source: ``cuCtxRecordEvent``, ``cuStreamWaitEvent``.
    """
