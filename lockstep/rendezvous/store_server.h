// SPDX-License-Identifier: BSD-3-Clause
// The values of a store, and the answers to its clients' requests, for an event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/epoll.h"
#include "lockstep/core/fork_safe_fd.h"
#include "lockstep/rendezvous/store_memory.h"

namespace lockstep {

// Has no thread: whoever owns it polls descriptor() for POLLIN and then calls serve(). A connection
// that sends anything but a request is closed and costs the others nothing. It holds at most
// StoreMemory::bound, and refuses what goes beyond. Not for use from several threads.
class StoreServer {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  // descriptor() has something also when this one has, behind which new connections wait. At most
  // `places` connections are kept.
  explicit StoreServer(int door, std::size_t places = std::numeric_limits<std::size_t>::max());

  int descriptor() const { return epoll_.get(); }
  // Does what can be done without blocking. Never throws for what a client does.
  void serve();

  // A client's connection; whether it may have one is for the caller to know. If no place is free,
  // it takes that of the oldest one that has sent no whole request, and is closed if there is none.
  void admit(ForkSafeFd socket);

  // A copy of what was set so far, by the clients and by the owner.
  Values values() const;
  // A copy of one key's value; nothing if it was not set.
  std::optional<std::string> value(std::string_view key) const;
  // UsageError if there is no room for it.
  void set(std::string key, std::string value);
  // Whether some client's reply has not been sent completely.
  bool replying() const;

  // Closes all descriptors.
  void close();

 private:
  // Lives while it is the key's value or is being sent.
  struct Value {
    explicit Value(StoreMemory& memory) : share(memory) {}
    std::string text;
    StoreMemory::Share share;
  };
  struct Connection {
    explicit Connection(StoreMemory& memory) : share(memory) {}
    ForkSafeFd socket;
    // Older connections have lower ones.
    std::uint64_t number = 0;
    // What has arrived of the request, and how many bytes that was: bytes that find no room are
    // counted, not kept.
    std::string received;
    std::size_t received_bytes = 0;
    bool has_room = true;
    StoreMemory::Share share;
    // The key that a get waits for.
    std::string awaited;
    bool waiting = false;
    // The reply, a length and a value if there is one, and how much of both has gone out.
    std::string head;
    std::shared_ptr<const Value> value;
    std::size_t sent = 0;
    bool replying = false;
  };

  // False if all places are taken by clients that wait for their answers.
  bool make_place();
  // Each returns false once the connection is to be closed.
  bool advance(Connection& connection);
  bool receive(Connection& connection);
  bool answer(Connection& connection);
  bool send(Connection& connection);
  // False if there is no room for it.
  bool keep(std::string key, std::string value);
  // The new number as text; empty if there is none.
  std::string sum(const std::string& key, std::string_view amount) const;
  void reply(Connection& connection, std::string head, std::shared_ptr<const Value> value = {});

  Epoll epoll_;
  StoreMemory memory_;
  std::map<std::string, std::shared_ptr<const Value>, std::less<>> values_;
  std::map<int, Connection> connections_;
  const std::size_t places_;
  std::uint64_t admitted_ = 0;
};

}  // namespace lockstep
