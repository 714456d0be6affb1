# Defines apt_install, which succeeds only if the packages were installed without asking anybody anything.
apt_install() {
  command -v apt-get > /dev/null || return 1
  if [ "$(id -u)" = 0 ]; then
    run=""
  elif sudo -n true 2> /dev/null; then
    run="sudo -n"
  else
    return 1
  fi
  echo "Installing system packages: $*"
  $run apt-get -qq update && $run env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@" > /dev/null
}
