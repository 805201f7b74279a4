// SPDX-License-Identifier: BSD-3-Clause
// The store that a launcher serves to its ranks on a Unix socket, from the launcher's event loop.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/net/listener.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/store_server.h"

namespace lockstep {

// Like StoreServer: its owner polls descriptor() for POLLIN and then calls serve(). Connections of
// other users are closed.
class LocalStoreServer {
 public:
  using Values = StoreServer::Values;

  // Listens on a socket in a new folder that only this user may enter: in TMPDIR or, if that is
  // unset or too long for a socket's name, in /tmp. BackendError if the folder or socket cannot be
  // made. The destructor removes the folder. First removes the folders that this user's servers
  // left there, since all processes of their jobs were killed at once.
  LocalStoreServer();

  // The absolute path that ranks get as LOCKSTEP_STORE.
  const std::string& path() const { return path_; }
  const std::string& folder() const { return folder_.path(); }

  int descriptor() const { return answers_.descriptor(); }
  void serve();
  // Whether waiting clients could not be accepted for lack of descriptors. descriptor() does not
  // become readable for them: call serve() again a little later.
  bool starved() const { return listener_.starved(); }

  Values values() const { return answers_.values(); }
  std::optional<std::string> value(std::string_view key) const { return answers_.value(key); }
  void set(std::string key, std::string value) { answers_.set(std::move(key), std::move(value)); }
  Values take(std::string_view prefix) { return answers_.take(prefix); }
  void drop(const std::string& prefix) { answers_.drop(prefix); }

  // Returns the folders of this user's servers on this machine in a folder such as TMPDIR; also
  // those that killed servers have left.
  static std::vector<std::string> folders_in(const std::string& parent);
  // The path() of the server that has this folder().
  static std::string socket_in(const std::string& folder);

  // Removes the folder of a server whose process has ended, with the socket and the board of an
  // elastic job. Ignores errors.
  static void remove_folder(const std::string& path);

  // In a forked child: closes the descriptors and leaves the folder to the parent.
  void leave_to_parent();

 private:
  class Folder {
   public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::string& path() const { return path_; }
    void leave();

   private:
    bool create(const std::string& pattern);

    std::string path_;
    // Locked while the server lives. The kernel releases the lock however the process ends.
    UniqueFd lock_;
  };

  Folder folder_;
  std::string path_;
  Listener listener_;
  StoreServer answers_;
};

}  // namespace lockstep
