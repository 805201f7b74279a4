// SPDX-License-Identifier: BSD-3-Clause
// The stores that libtorch brings: one that rank 0 serves over TCP, and one in a file. The same
// that torch.distributed uses.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

// Rank 0 listens on the port, unless somebody else serves the store there already; the others
// connect. TimeoutError if that takes too long, BackendError if the port cannot be used.
std::shared_ptr<Store> make_tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                      int world_size, std::chrono::milliseconds timeout);

// The file is made if it does not exist, and removed by the last rank that closes it. UsageError if
// its folder does not exist.
std::shared_ptr<Store> make_file_store(const std::string& path, int world_size);

}  // namespace lockstep
