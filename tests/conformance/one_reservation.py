"""Rows 101 to 202: one reservation, and what can be mapped in it and past its end."""

from cuda.bindings import driver
from steps import (
    POSIX,
    READ,
    G,
    create,
    get_access,
    must,
    properties_row,
    range_row,
    reserve,
    row,
    set_access,
)


class Reservation:
    """The reservation of 32 G and the handles of 4, 1 and 2 G that rows 101 to 202 use."""

    def __init__(self):
        self.base = int(must(reserve(32 * G)))
        self.h4, self.h1, self.h2 = (must(create(k * G)) for k in (4, 1, 2))

    def at(self, granules):
        return self.base + granules * G

    def bad_maps(self):
        base, h4 = self.base, self.h4
        row(101, "retain unmapped reserved", driver.cuMemRetainAllocationHandle(base))
        range_row(102, "range reserved, nothing mapped", base)
        row(103, "map size=0", driver.cuMemMap(base, 0, 0, h4, 0))
        partial = driver.cuMemMap(base, G, 0, h4, 0)
        row(104, "map size<handle (partial, 1G of 4G)", partial)
        row(105, "  unmap", driver.cuMemUnmap(base, G))
        row(106, "map size>handle (8G of 4G)", driver.cuMemMap(base, 8 * G, 0, h4, 0))
        row(108, "  unmap", driver.cuMemUnmap(base, 8 * G))
        row(110, "map addr unaligned +4096", driver.cuMemMap(base + 4096, 4 * G, 0, h4, 0))
        row(111, "map addr unaligned +64K", driver.cuMemMap(base + (64 << 10), 4 * G, 0, h4, 0))
        before = driver.cuMemMap(self.at(-4), 4 * G, 0, h4, 0)
        row(113, "map outside reservation (before)", before)

    def straddling(self):
        start, end = self.at(31), self.at(32)
        row(114, "map straddling reservation end", driver.cuMemMap(start, 2 * G, 0, self.h2, 0))
        row(115, "  set_access straddling", set_access(start, 2 * G))
        range_row(116, "range straddling mapping", start, self.base)
        range_row(117, "range straddling mapping, past the reservation", end, self.base)
        row(118, "  memset past the reservation", driver.cuMemsetD8(end, 1, G))
        row(119, "  sync", driver.cuCtxSynchronize())
        answer = reserve(G, requested=end)
        got = "there" if int(answer[1]) == end else "elsewhere"
        row(120, "  reserve at the straddled address", answer, got=got)
        must(driver.cuMemAddressFree(answer[1], G))
        freed = driver.cuMemAddressFree(self.base, 32 * G)
        row(121, "  address_free with a straddling mapping", freed)
        must(driver.cuMemUnmap(start, 2 * G))
        row(123, "map after reservation", driver.cuMemMap(end, 2 * G, 0, self.h2, 0))
        row(124, "map flags=1", driver.cuMemMap(self.base, 4 * G, 0, self.h4, 1))

    def maps(self):
        base = self.base
        row(125, "map 4G at 0", driver.cuMemMap(base, 4 * G, 0, self.h4, 0))
        range_row(126, "range mapped, before set_access, start", base)
        range_row(127, "range mapped, before set_access, interior", base + 5)
        _, retained = row(128, "retain before set_access", driver.cuMemRetainAllocationHandle(base))
        must(driver.cuMemRelease(retained))
        answer = get_access(base)
        row(129, "get_access before set", answer, value=answer[1] or None)  # so it was recorded
        row(130, "set_access whole", set_access(base, 4 * G))
        range_row(131, "range mapped, accessible, start", base, base)
        range_row(132, "range interior+5", base + 5, base)
        range_row(133, "range last byte", self.at(4) - 1, base)
        range_row(134, "range one past end (unmapped, reserved)", self.at(4), base)
        row(135, "map overlap whole", driver.cuMemMap(base, 4 * G, 0, self.h4, 0))
        row(136, "map overlap tail", driver.cuMemMap(self.at(3), 2 * G, 0, self.h2, 0))
        row(137, "map h1 adjacent at 4G", driver.cuMemMap(self.at(4), G, 0, self.h1, 0))
        row(138, "set_access h1", set_access(self.at(4), G))
        range_row(139, "range adjacent second mapping", self.at(4) + 7, base)
        row(140, "map same handle h1 again at 6G", driver.cuMemMap(self.at(6), G, 0, self.h1, 0))

    def access(self):
        base = self.base
        row(142, "set_access alias only", set_access(self.at(6), G))
        row(143, "set_access spanning two mappings [0,5G)", set_access(base, 5 * G))
        row(144, "set_access partial of mapping [0,G)", set_access(base, G))
        row(145, "set_access unaligned", set_access(base + 4096, 4 * G))
        row(146, "set_access size=0", set_access(base, 0))
        row(147, "set_access count=0", set_access(base, 4 * G, count=0))
        row(148, "set_access unmapped", set_access(self.at(20), G))
        row(149, "set_access device=99", set_access(base, 4 * G, device=99))
        row(150, "set_access read-only", set_access(self.at(6), G, READ))
        answer = get_access(base)
        row(152, "get_access rw", answer, value=answer[1])
        row(154, "memset via mapping", driver.cuMemsetD8(self.at(4), 0x5A, G))
        row(155, "sync", driver.cuCtxSynchronize())
        row(156, "set_access alias rw", set_access(self.at(6), G))
        copy = bytearray(8)
        answer = driver.cuMemcpyDtoH(copy, self.at(6), len(copy))
        row(157, "copy from alias", answer, value=copy.hex())

    def handles(self):
        for n, case, address in ((158, "interior +5", self.base + 5), (160, "start", self.base)):
            answer = driver.cuMemRetainAllocationHandle(address)
            row(n, f"retain {case}", answer, same_as_h4=int(answer[1]) == int(self.h4))
            row(n + 1, "  release retained", driver.cuMemRelease(answer[1]))
        properties_row(162, "properties", self.h4)
        exported = driver.cuMemExportToShareableHandle(self.h4, POSIX, 0)
        row(163, "export posix, not requested", exported)
        row(164, "release h4 while mapped", driver.cuMemRelease(self.h4))
        after = self.base + 3
        range_row(165, "range after handle released, still mapped", after, self.base)
        retained = must(driver.cuMemRetainAllocationHandle(self.base))
        row(167, "  release", driver.cuMemRelease(retained))

    def unmaps(self):
        base = self.base
        row(168, "unmap partial [0,G) of 4G mapping", driver.cuMemUnmap(base, G))
        range_row(169, "range after partial unmap try", base, base)
        row(170, "unmap unaligned", driver.cuMemUnmap(base + 4096, 4 * G))
        row(171, "unmap size=0", driver.cuMemUnmap(base, 0))
        row(172, "unmap not mapped", driver.cuMemUnmap(self.at(20), G))
        must(driver.cuMemMap(self.at(12), 2 * G, 0, self.h2, 0))
        must(set_access(self.at(12), 2 * G))
        must(driver.cuMemUnmap(self.at(11), 5 * G))
        range_row(174, "range after unmap over hole", self.at(12))
        freed = driver.cuMemAddressFree(base, 32 * G)
        row(175, "address_free while mapped", freed)

    def two_at_once(self):
        ha, hb = (must(create(2 * G)) for _ in range(2))
        row(177, "map ha at 8G", driver.cuMemMap(self.at(8), 2 * G, 0, ha, 0))
        row(178, "map hb at 10G", driver.cuMemMap(self.at(10), 2 * G, 0, hb, 0))
        row(179, "set_access both at once", set_access(self.at(8), 4 * G))
        driver.cuMemUnmap(self.at(9), 3 * G)  # cuts ha, spans hb: refused, nothing changed
        range_row(181, "range ha after", self.at(8), self.base)
        range_row(182, "range hb after", self.at(10), self.base)
        row(183, "unmap both [8G,12G)", driver.cuMemUnmap(self.at(8), 4 * G))
        range_row(184, "range ha after", self.at(8))
        range_row(185, "range hb after", self.at(10))
        row(186, "release ha", driver.cuMemRelease(ha))
        row(187, "release hb", driver.cuMemRelease(hb))

    def double_release_while_mapped(self):
        hc, address = must(create(G)), self.at(16)
        must(driver.cuMemMap(address, G, 0, hc, 0))
        must(set_access(address, G))
        row(188, "release hc mapped", driver.cuMemRelease(hc))
        driver.cuMemRelease(hc)
        row(191, "memset hc after double release", driver.cuMemsetD8(address, 2, G))
        row(192, "sync", driver.cuCtxSynchronize())
        row(193, "unmap hc", driver.cuMemUnmap(address, G))

    def end(self):
        base = self.base
        row(195, "unmap two mappings [0,5G)", driver.cuMemUnmap(base, 5 * G))
        range_row(196, "range after unmap two", base)
        row(197, "unmap twice", driver.cuMemUnmap(base, 5 * G))
        row(198, "unmap alias", driver.cuMemUnmap(self.at(6), G))
        row(199, "release h1", driver.cuMemRelease(self.h1))
        row(200, "release h2", driver.cuMemRelease(self.h2))
        row(201, "address_free at end", driver.cuMemAddressFree(base, 32 * G))
        range_row(202, "range after address_free", base)

    def replay(self):
        for part in (
            self.bad_maps,
            self.straddling,
            self.maps,
            self.access,
            self.handles,
            self.unmaps,
            self.two_at_once,
            self.double_release_while_mapped,
            self.end,
        ):
            part()
