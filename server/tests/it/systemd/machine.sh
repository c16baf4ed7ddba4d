# Starts a machine, runs a program in it and ends it. The machine is namespaces of its own, whose process 1 is a real systemd. It sees the
# system's files, and what it writes is gone afterwards. It has the units of packaging/, its own loopback network and its own cgroup.
#
# Usage: unshare --mount sh -eu machine.sh FOLDER OSIER PACKAGING PROGRAM [ARGUMENT...]
#
# The folder is an empty one. Ends with 77 if this user or this system cannot make a machine.

folder=$1 osier=$2 packaging=$3 program=$4
shift 4
units=/usr/lib/systemd/system
init=/lib/systemd/systemd

# Runs in all namespaces, as process 1.
boot() {
    # The process id outside: this is still the system's /proc.
    read -r first _ </proc/self/stat
    echo "$first" >layers/first
    for name in usr etc; do
        mkdir layers/$name layers/$name.work
        mount -t overlay -o lowerdir=/$name,upperdir=layers/$name,workdir=layers/$name.work overlay /$name
    done
    # Only these units exist.
    mkdir layers/units
    (cd $units && cp --parents -t "$folder/layers/units" ./*.target systemd-journald*.service systemd-journald*.socket)
    cp "$packaging/osier.service" "$packaging/osier.socket" layers/units
    mount --bind layers/units $units
    mount -t tmpfs tmpfs /usr/lib/systemd/system-generators
    mount -t tmpfs tmpfs /etc/systemd
    mkdir /etc/systemd/system
    printf '[Unit]\nRequires=multi-user.target systemd-journald.service\n' >/etc/systemd/system/default.target
    # What the packages install.
    touch /usr/bin/osier
    mount --bind "$osier" /usr/bin/osier
    mkdir -p /etc/osier
    cp "$packaging/site.toml" "$packaging/debian/postinst" /etc/osier
    # That of a container may forbid restarts.
    rm -f /usr/sbin/policy-rc.d
    getent group www-data >/dev/null || groupadd --system www-data
    id osier >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin osier
    # Devices, and what the kernel shows of this machine alone.
    mkdir dev
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/pts dev/shm
    for name in null zero full random urandom tty; do
        touch dev/$name
        mount --bind /dev/$name dev/$name
    done
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount --rbind dev /dev
    mount -t proc proc /proc
    # Settings of the kernel are those of the whole system.
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    umount -R /sys
    mount -t sysfs -o ro sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # The last ones: they may hide the folder.
    mount -t tmpfs -o mode=755 tmpfs /run
    touch /run/program
    mount --bind "$program" /run/program
    mount -t tmpfs tmpfs /var
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mkdir -m 1777 /var/tmp
    exec env -i container=test PATH="$PATH" $init --system --show-status=no
}

cannot() {
    echo "$1" >&2
    exit 77
}

cd "$folder"
[ "${1-}" != boot ] || boot
[ -x $init ] || cannot "there is no systemd"
mkdir layers cgroups probe
mount -t tmpfs -o mode=755 tmpfs layers || cannot "this user may not mount"
mkdir layers/probe layers/probe.work
mount -t overlay -o lowerdir=/usr,upperdir=layers/probe,workdir=layers/probe.work overlay probe || cannot "there is no overlayfs"
mount -t cgroup2 cgroup2 cgroups || cannot "there are no cgroups of version 2"
unshare --mount --cgroup --pid --net --uts --ipc --fork true || cannot "this user may not make namespaces"
own=$folder/cgroups$(sed -n 's/^0:://p' /proc/self/cgroup)
group=$own/osier-test-machine-$$
mkdir "$group" || cannot "this user may not make a cgroup"

ended() {
    [ -z "$machine" ] || kill -KILL "$machine" 2>/dev/null || :
    echo $$ >"$own/cgroup.procs"
    # The processes of the machine end a moment later.
    tries=500
    while [ -d "$group" ] && [ $tries -gt 0 ]; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.02
        tries=$((tries - 1))
    done
}
machine=
trap ended EXIT
trap 'exit 1' HUP INT TERM

# The group becomes the root of the machine's cgroups. Only the machine stays in it.
echo $$ >"$group/cgroup.procs"
unshare --mount --cgroup --pid --net --uts --ipc --fork --kill-child sh -eu "$0" "$folder" "$osier" "$packaging" "$program" boot &
machine=$!
until [ "$(cat "/proc/$(cat layers/first 2>/dev/null)/comm" 2>/dev/null)" = systemd ]; do
    kill -0 $machine
    sleep 0.02
done
echo $$ >"$own/cgroup.procs"
echo $machine >"$own/cgroup.procs"
status=0
OSIER_TEST_MACHINE=1 timeout --foreground 600 nsenter --target "$(cat layers/first)" --mount --pid --net --uts --ipc --cgroup /run/program "$@" || status=$?
exit $status
