// SPDX-License-Identifier: BSD-3-Clause
// The stores of libtorch, which torch.distributed uses too: torchrun's over TCP, and one in a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

// TimeoutError, here and from the store's functions, if the store does not answer in time;
// BackendError if it cannot be used.
std::shared_ptr<Store> join_c10d_store(const std::string& host, std::uint16_t port, int world_size,
                                       std::chrono::milliseconds timeout);

// Creates the file if it does not exist; the last rank that closes it removes it. UsageError if its
// folder does not exist. TimeoutError, here and from the store's functions, if the file does not
// answer in time because a process ended while it wrote to it.
std::shared_ptr<Store> make_file_store(const std::string& path, int world_size,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep
