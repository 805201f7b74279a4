// SPDX-License-Identifier: BSD-3-Clause
// A store's values and the replies to its clients' requests, for an event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/net/listener.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/store.h"
#include "lockstep/rendezvous/store_protocol.h"

namespace lockstep {

// Bounds the memory of a store's server (store_protocol::kMaxStore): values, and requests that have
// arrived in part.
class StoreMemory {
 public:
  // The overhead of an entry beyond its key and value, in bytes.
  static constexpr std::size_t kPerEntry = 256;

  // A part of the memory, returned when this object is destroyed.
  class Share {
   public:
    explicit Share(StoreMemory& memory) : memory_(memory) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { clear(); }

    // Returns false and changes nothing if the bound would be exceeded.
    bool grow(std::size_t bytes) {
      if (bytes > store_protocol::kMaxStore - memory_.held_) return false;
      memory_.held_ += bytes;
      bytes_ += bytes;
      return true;
    }
    void clear() {
      memory_.held_ -= bytes_;
      bytes_ = 0;
    }

   private:
    StoreMemory& memory_;
    std::size_t bytes_ = 0;
  };

 private:
  std::size_t held_ = 0;
};

// Has no thread: its owner polls descriptor() for POLLIN and then calls serve(). A connection that
// sends anything but a request is closed, at no cost to the others. Holds at most
// store_protocol::kMaxStore bytes and refuses more. Not thread-safe.
class StoreServer {
 public:
  using Values = StoreValues;

  // `door` becomes readable when new connections arrive, and so does descriptor() then. Keeps at
  // most `max_connections` connections.
  explicit StoreServer(int door,
                       std::size_t max_connections = std::numeric_limits<std::size_t>::max());

  int descriptor() const { return epoll_.get(); }
  // Serves all ready connections without blocking. A client cannot make it throw.
  void serve();

  // Takes a client's connection; the caller decides who may connect. If all places are taken, it
  // replaces the oldest connection that has not sent a whole request; if there is none, the new one
  // is closed.
  void admit(ForkSafeFd socket);

  // A copy of all values set so far, by clients and by the owner.
  Values values() const;
  // A copy of one key's value; nullopt if it was not set.
  std::optional<std::string> value(std::string_view key) const;
  // UsageError if there is no room.
  void set(std::string key, std::string value);
  // Removes the values whose keys begin with this, and returns them. Clients may set them again.
  Values take(std::string_view prefix);
  // Forgets the keys that begin with this. A client that waits for such a key, now or later, finds
  // its connection closed.
  void drop(const std::string& prefix);
  // Whether a client's reply has not been sent completely.
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
    // Increases with each admitted connection.
    std::uint64_t number = 0;
    // The part of the request that has arrived, and its size. Bytes for which there is no room are
    // counted but not kept.
    std::string received;
    std::size_t received_bytes = 0;
    bool has_room = true;
    StoreMemory::Share share;
    // The key that a get waits for.
    std::string awaited;
    bool waiting = false;
    // The reply (a length, and a value if there is one), and how many of its bytes have been sent.
    std::string head;
    std::shared_ptr<const Value> value;
    std::size_t sent = 0;
    bool replying = false;
  };

  // False if all connections are taken by clients that wait for their replies.
  bool make_room();
  // These return false when the connection is to be closed.
  bool advance(Connection& connection);
  bool receive(Connection& connection);
  bool answer(Connection& connection);
  bool send(Connection& connection);
  bool is_dropped(std::string_view key) const;
  // False if there is no room.
  bool keep(std::string key, std::string value);
  // The sum as text; empty if there is none.
  std::string sum(const std::string& key, std::string_view amount) const;
  void reply(Connection& connection, std::string head, std::shared_ptr<const Value> value = {});

  Epoll epoll_;
  StoreMemory memory_;
  std::map<std::string, std::shared_ptr<const Value>, std::less<>> values_;
  std::vector<std::string> dropped_;
  std::map<int, Connection> connections_;
  const std::size_t max_connections_;
  std::uint64_t admitted_ = 0;
};

}  // namespace lockstep
