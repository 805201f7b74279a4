// SPDX-License-Identifier: BSD-3-Clause
// The server's thread: accepts clients, answers them, and sends the last replies before it ends.
#include "lockstep/rendezvous/tcp_store_server.h"

#include <array>

#include <poll.h>

namespace lockstep {
namespace {

// No event signals that a silent pending peer has run out of time, or that descriptors are free
// again for connections in the kernel's queue.
constexpr int kAtMostMs = 200;
// How long an ending server waits for clients to take the replies that they asked for.
constexpr std::chrono::milliseconds kLinger(300);
// Each request has its own connection, and several threads of one client may make one at once.
// Without a secret, foreign connections must not take all descriptors of rank 0.
constexpr std::size_t kPlacesOfAClient = 4;
constexpr std::size_t kFurtherPlaces = 256;

}  // namespace

TcpStoreServer::TcpStoreServer(UniqueFd listener, const Key& key, int clients)
    : acceptor_(std::move(listener), key, clients),
      answers_(acceptor_.descriptor(),
               kFurtherPlaces + kPlacesOfAClient * static_cast<std::size_t>(clients)),
      thread_([this](int stop) { run(stop); }) {}

void TcpStoreServer::run(int stop) {
  std::array<pollfd, 2> entries{{{stop, POLLIN, 0}, {answers_.descriptor(), POLLIN, 0}}};
  while (entries[0].revents == 0) {
    ::poll(entries.data(), entries.size(), kAtMostMs);
    for (auto& socket : acceptor_.serve()) answers_.admit(std::move(socket));
    answers_.serve();
  }
  for (const Deadline end = Deadline::after(kLinger); answers_.replying() && !end.passed();) {
    ::poll(&entries[1], 1, static_cast<int>(end.remaining().count()));
    answers_.serve();
  }
}

}  // namespace lockstep
