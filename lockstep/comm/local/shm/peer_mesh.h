// SPDX-License-Identifier: BSD-3-Clause
// A rank's connections to all other ranks of its machine, over Unix sockets. They carry descriptors
// of shared memory and show when a peer is gone: the kernel closes them however the peer ends. A
// child that the peer forked may keep them open, so the peer's process is watched as well.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/comm/local/peers.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::shm {

class PeerMesh {
 public:
  // Blocks until every rank is connected to every other. TimeoutError names the ranks that did not
  // join, PeerLost a rank that joined and died; BackendError if ranks run on another machine.
  PeerMesh(const Membership& membership, const Deadline& deadline);
  PeerMesh(const PeerMesh&) = delete;
  PeerMesh& operator=(const PeerMesh&) = delete;
  // Tells the peers that this rank leaves.
  ~PeerMesh();
  // Tells the peers that an exception ends this rank. Call it once, before the destructor.
  void leave_failing() { tell_all(kFarewellFailing); }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  pid_t pid(int rank) const { return peers_[rank].pid; }

  // Sends the descriptor to every peer and returns the peers' descriptors, by rank; this rank's
  // place is empty. A collective call. TimeoutError and PeerLost name the peer.
  std::vector<UniqueFd> exchange(int fd, const Deadline& deadline);

  using State = local::Peers::State;
  State state(int rank) const;

 private:
  struct PeerConnection {
    UniqueFd socket;
    pid_t pid = 0;
    UniqueFd process;  // a pidfd; none if the peer's PID namespace is not visible here
  };

  static constexpr std::byte kFarewell{'B'};
  static constexpr std::byte kFarewellFailing{'F'};
  void tell_all(std::byte word) const;

  void join(const Membership& membership, const Deadline& deadline);
  void connect(int peer, const Membership& membership, const std::string& key,
               const Deadline& deadline);
  void accept_higher(int listener, const Membership& membership, const std::string& token,
                     const Deadline& deadline);

  UniqueFd receive_from(int peer, const Deadline& deadline) const;
  [[noreturn]] void throw_gone(int rank) const;
  bool descriptor_waits(int rank) const;
  int cause_of_end(int peer) const;

  int rank_;
  pid_t owner_;  // a forked child has the object too
  std::vector<PeerConnection> peers_;
};

}  // namespace lockstep::shm
