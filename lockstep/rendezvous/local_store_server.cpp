// SPDX-License-Identifier: BSD-3-Clause
// Makes the private folder with the socket, removes leftover ones, and admits only this user's
// processes.
#include "lockstep/rendezvous/local_store_server.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/core/system_error.h"
#include "lockstep/rendezvous/elastic_board.h"

namespace lockstep {
namespace {

constexpr std::string_view kUnique = "XXXXXX";
constexpr std::string_view kSocketName = "/store";

// Names the folders of this boot of this machine: a lock may tell nothing about a process of
// another machine that shares TMPDIR. Empty without /proc.
std::string boot_name() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.substr(0, id.find('-'));
}

std::string folder_prefix(const std::string& boot) {
  return fmt::format("lockstep-{}-", boot);
}

bool lock_folder(int folder) {
  return ::flock(folder, LOCK_EX | LOCK_NB) == 0;
}

bool is_at(const std::string& path, int folder) {
  struct stat named {};
  struct stat open {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(folder, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool is_this_users(int folder) {
  struct stat found {};
  return ::fstat(folder, &found) == 0 && found.st_uid == ::geteuid();
}

// A server holds its folder's lock, from just after it has made the folder: a server whose empty
// folder is taken for a leftover in between makes another one.
void remove_leftovers(const std::string& parent) {
  for (const std::string& path : LocalStoreServer::folders_in(parent)) {
    const UniqueFd folder = open_folder(path);
    if (!folder || !is_this_users(folder.get())) continue;
    if (!lock_folder(folder.get()) || !is_at(path, folder.get())) continue;
    LocalStoreServer::remove_folder(path);
  }
}

// Where the folder is made, without its name.
std::string parent_folder(std::size_t name_size) {
  std::error_code ignored;
  // Absolute for the keeper, and for ranks that change their working directory.
  const std::string parent =
      std::filesystem::absolute(environment("TMPDIR").value_or("/tmp"), ignored).string();
  const std::size_t size = parent.size() + 1 + name_size + kSocketName.size();
  return size < sizeof(sockaddr_un::sun_path) ? parent : "/tmp";
}

bool belongs_to_this_user(int socket) try {
  return peer_of(socket).uid == ::geteuid();
} catch (const BackendError&) {
  return false;  // It has gone already.
}

}  // namespace

LocalStoreServer::Folder::Folder() {
  const std::string boot = boot_name();
  const std::string prefix = folder_prefix(boot);
  const std::string parent = parent_folder(prefix.size() + kUnique.size());
  if (!boot.empty()) remove_leftovers(parent);
  const std::string pattern = fmt::format("{}/{}{}", parent, prefix, kUnique);
  constexpr int kMostAttempts = 100;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (create(pattern)) return;
    if (errno != EEXIST) break;
  }
  const int error = errno;
  throw BackendError(fmt::format(
      "cannot make a folder for the launcher's socket in {}: {}{}", parent, reason_of(error),
      error == EMFILE ? "" : "; set TMPDIR to a folder that can be written to"));
}

// A new folder that only this user may enter. False with EEXIST if another server took it for a
// leftover before it was locked.
bool LocalStoreServer::Folder::create(const std::string& pattern) {
  std::string path = pattern;
  if (::mkdtemp(path.data()) == nullptr) return false;
  lock_ = open_folder(path);
  const int error = lock_ || errno == ENOENT ? 0 : errno;
  // On a file system without locks, nobody removes leftovers.
  const bool contested = !lock_ || (!lock_folder(lock_.get()) && errno == EWOULDBLOCK);
  if (!contested && is_at(path, lock_.get())) {
    path_ = path;
    return true;
  }
  ::rmdir(path.c_str());
  errno = error != 0 ? error : EEXIST;
  return false;
}

LocalStoreServer::Folder::~Folder() {
  if (!path_.empty()) remove_folder(path_);
}

void LocalStoreServer::Folder::leave() {
  path_.clear();
  lock_.reset();
}

LocalStoreServer::LocalStoreServer()
    : path_(socket_in(folder_.path())),
      listener_(listen_unix(path_)),
      answers_(listener_.descriptor()) {}

void LocalStoreServer::serve() {
  for (auto& socket : listener_.accept()) {
    if (belongs_to_this_user(socket.get())) answers_.admit(ForkSafeFd(std::move(socket)));
  }
  answers_.serve();
}

std::vector<std::string> LocalStoreServer::folders_in(const std::string& parent) {
  const std::string prefix = folder_prefix(boot_name());
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(parent.c_str()), ::closedir);
  std::vector<std::string> found;
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kUnique.size()) continue;
    const std::string path = parent + "/" + name;
    const UniqueFd folder = open_folder(path);
    if (folder && is_this_users(folder.get())) found.push_back(path);
  }
  return found;
}

std::string LocalStoreServer::socket_in(const std::string& folder) {
  return folder + std::string(kSocketName);
}

void LocalStoreServer::remove_folder(const std::string& path) {
  ::unlink(socket_in(path).c_str());
  ::unlink(fmt::format("{}/{}", path, kBoardName).c_str());
  ::rmdir(path.c_str());
}

void LocalStoreServer::leave_to_parent() {
  folder_.leave();
  answers_.close();
  listener_.close();
}

}  // namespace lockstep
