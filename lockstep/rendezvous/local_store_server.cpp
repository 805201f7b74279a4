// SPDX-License-Identifier: BSD-3-Clause
// Makes the private folder with the socket, and admits only this user's processes.
#include "lockstep/rendezvous/local_store_server.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unix_socket.h"

namespace lockstep {
namespace {

constexpr std::string_view kFolderPattern = "/lockstep-XXXXXX";
constexpr std::string_view kSocketName = "/store";

// A new folder that only this user may enter.
std::string make_folder() {
  std::string parent = environment("TMPDIR").value_or("/tmp");
  std::error_code ignored;
  // Absolute for the keeper, and for ranks that change their working directory.
  parent = std::filesystem::absolute(parent, ignored).string();
  if (parent.size() + kFolderPattern.size() + kSocketName.size() >= sizeof(sockaddr_un::sun_path)) {
    parent = "/tmp";
  }
  std::string folder = parent + std::string(kFolderPattern);
  if (::mkdtemp(folder.data()) == nullptr) {
    throw BackendError(fmt::format(
        "cannot make a folder for the launcher's socket in {}: {}; set TMPDIR to a folder that can "
        "be written to",
        parent, std::strerror(errno)));
  }
  return folder;
}

bool belongs_to_this_user(int socket) try {
  return peer_of(socket).uid == ::geteuid();
} catch (const BackendError&) {
  return false;  // It has gone already.
}

}  // namespace

LocalStoreServer::Folder::Folder() : path_(make_folder()) {}

LocalStoreServer::Folder::~Folder() {
  if (path_.empty()) return;
  ::unlink(socket().c_str());
  ::rmdir(path_.c_str());
}

std::string LocalStoreServer::Folder::socket() const {
  return path_ + std::string(kSocketName);
}

LocalStoreServer::LocalStoreServer()
    : path_(folder_.socket()), listener_(listen_unix(path_)), answers_(listener_.descriptor()) {}

void LocalStoreServer::serve() {
  for (auto& socket : listener_.accept()) {
    if (belongs_to_this_user(socket.get())) answers_.admit(ForkSafeFd(std::move(socket)));
  }
  answers_.serve();
}

void LocalStoreServer::leave_to_parent() {
  folder_.leave();
  answers_.close();
  listener_.close();
}

}  // namespace lockstep
