// SPDX-License-Identifier: BSD-3-Clause
// The values of a store, and the answers to its clients' requests, for an event loop.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "lockstep/core/epoll.h"
#include "lockstep/core/own_fd.h"

namespace lockstep {

// Has no thread: whoever owns it polls descriptor() for POLLIN and then calls serve(). A connection
// that sends anything but a request is closed and costs the others nothing. Not for use from
// several threads.
class StoreServer {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  // descriptor() has something also when this one has, behind which new connections wait.
  explicit StoreServer(int door);

  int descriptor() const { return epoll_.get(); }
  // Does what can be done without blocking. Never throws for what a client does.
  void serve();

  // A client's connection; whether it may have one is for the caller to know.
  void admit(OwnFd socket);

  // What was set so far, by the clients and by the owner.
  const Values& values() const { return values_; }
  void set(std::string key, std::string value);

  // Closes all descriptors.
  void close();

 private:
  struct Connection {
    OwnFd socket;
    // The request as far as it has come.
    std::string received;
    // The key that a get waits for.
    std::string awaited;
    bool waiting = false;
    // The reply, and how much of it has gone out.
    std::string reply;
    std::size_t sent = 0;
    bool replying = false;
  };

  // Each returns false once the connection is to be closed.
  bool advance(Connection& connection);
  bool receive(Connection& connection);
  bool answer(Connection& connection);
  bool send(Connection& connection);
  // The new number as text; empty if there is none.
  std::string add(std::string key, std::string_view amount);
  void reply(Connection& connection, std::string_view value);

  Epoll epoll_;
  std::map<int, Connection> connections_;
  Values values_;
};

}  // namespace lockstep
