// SPDX-License-Identifier: BSD-3-Clause
// The store that a launcher serves to its ranks on a Unix socket, from its own event loop.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Has no thread: whoever owns it polls descriptor() for POLLIN and then calls serve(). A connection
// that sends anything but a request, or that belongs to another user, is closed and costs the
// others nothing. Not for use from several threads.
class LocalStoreServer {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  // Listens on a socket in a new folder that only this user may enter, in TMPDIR or, where that is
  // unset or too long a name for a socket, in /tmp. BackendError if it cannot be made.
  LocalStoreServer();
  // Closes all connections and removes the folder.
  ~LocalStoreServer();
  LocalStoreServer(const LocalStoreServer&) = delete;
  LocalStoreServer& operator=(const LocalStoreServer&) = delete;

  // What ranks are given as LOCKSTEP_STORE. An absolute path.
  const std::string& path() const { return path_; }
  const std::string& folder() const { return folder_; }

  int descriptor() const { return epoll_.get(); }
  // Does what can be done without blocking. Never throws for what a client does.
  void serve();

  // What was set so far, by the ranks and by the owner.
  const Values& values() const { return values_; }
  void set(std::string key, std::string value);

  // In a forked child: closes the descriptors and leaves the folder to the parent.
  void leave_to_parent();

 private:
  struct Connection {
    UniqueFd socket;
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

  void listen(bool on);
  void accept_all();
  // Each returns false once the connection is to be closed.
  bool advance(Connection& connection);
  bool receive(Connection& connection);
  bool answer(Connection& connection);
  bool send(Connection& connection);
  // The new number as text; empty if there is none.
  std::string add(std::string key, std::string_view amount);
  void reply(Connection& connection, std::string_view value);

  std::string folder_;
  std::string path_;
  UniqueFd epoll_;
  UniqueFd listener_;
  bool listening_ = false;
  std::map<int, Connection> connections_;
  Values values_;
};

}  // namespace lockstep
