package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/shardplane/shardplane/pkg/dev/pki"
)

const (
	// layoutVersion is in every working directory. It changes if older files cannot be used any more.
	layoutVersion = "shardplane-dev 1"

	probeTimeout = time.Second
)

// prepared is a locked working directory that is ready to start the components.
type prepared struct {
	lock  *flock.Flock
	certs *certificates
	// notes describe unexpected changes of files.
	notes []string
}

// prepare locks the working directory, creates missing files, and checks what can be checked before the start.
func prepare(ctx context.Context, o CompletedOptions) (p *prepared, err error) {
	files := layout(o.WorkDir)
	if err := os.MkdirAll(files.shared(""), 0o700); err != nil {
		return nil, unwritable(o.WorkDir, err)
	}
	held, err := acquireLock(files.shared(lockFile))
	switch {
	case errors.Is(err, errLocked):
		return nil, fmt.Errorf("%s is %w: stop that one or pass another --work-dir", o.WorkDir, err)
	case err != nil:
		return nil, unwritable(o.WorkDir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, held.Unlock())
		}
	}()

	if err := checkVersion(files); err != nil {
		return nil, err
	}
	if err := removeIfExists(files.shared(readyFile)); err != nil {
		return nil, unwritable(o.WorkDir, err)
	}
	if err := checkPorts(ctx, o.ports()); err != nil {
		return nil, err
	}
	for _, dir := range files.dirs(o.Shards) {
		if err := makeWritable(dir); err != nil {
			return nil, unwritable(o.WorkDir, err)
		}
	}
	certs, err := ensureCertificates(files, o.Shards, time.Now)
	if err != nil {
		return nil, err
	}
	if err := ensureKubeconfigs(o, certs); err != nil {
		return nil, err
	}
	notes := certs.store.Notes
	if note := unstartedShards(files, o.Shards); note != "" {
		notes = append(notes, note)
	}
	return &prepared{lock: held, certs: certs, notes: notes}, nil
}

func unwritable(dir string, err error) error {
	return fmt.Errorf("cannot write to the working directory %s (%w): make it writable or pass another --work-dir", dir, err)
}

// makeWritable creates a directory if it does not exist, and checks that it is writable.
func makeWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	probe, err := os.CreateTemp(dir, ".writable.*")
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// checkVersion rejects a working directory with incompatible files, and writes the version to an empty one.
func checkVersion(files layout) error {
	path := files.shared(versionFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if found := unexpectedFile(files); found != "" {
			return fmt.Errorf("%s was not created by shardplane dev: move %s* to another directory or pass another --work-dir",
				found, filepath.Join(string(files), sharedDir))
		}
		return pki.WriteFile(path, []byte(layoutVersion+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("reading the version of the data: %w", err)
	}
	if found := strings.TrimSpace(string(data)); found != layoutVersion {
		return fmt.Errorf("%s has data of version %q, and this shardplane needs %q: use the shardplane that created it, move %s* to another directory, or pass another --work-dir",
			string(files), abbreviate(found, 40), layoutVersion, filepath.Join(string(files), sharedDir))
	}
	return nil
}

// unexpectedFile returns a file that is not expected in the working directory at a first start, or "".
func unexpectedFile(files layout) string {
	found, err := filepath.Glob(filepath.Join(string(files), sharedDir+"-*"))
	if err == nil && len(found) > 0 {
		return found[0]
	}
	entries, err := os.ReadDir(files.shared(""))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		// An interrupted start may leave a temporary version file.
		if e.Name() != lockFile && !strings.HasPrefix(e.Name(), "."+versionFile) {
			return files.shared(e.Name())
		}
	}
	return ""
}

// unstartedShards returns a note about shards of an earlier run that are not started now.
func unstartedShards(files layout, shards int) string {
	last := shards - 1
	for n := shards; n < MaxShards; n++ {
		if _, err := os.Stat(files.shard(n, "data")); err == nil {
			last = n
		}
	}
	if last < shards {
		return ""
	}
	return fmt.Sprintf("an earlier run had more shards: workspaces on %s to %s are unavailable (503) until --shards is %d again, and so are workspaces that do not exist, "+
		"because they may be there. To remove these shards, delete their Shard objects (kubectl delete shards <name>, in root) and the directories %s-<n>",
		shardName(shards), shardName(last), last+1, sharedDir)
}

func checkPorts(ctx context.Context, ports []port) error {
	for _, p := range ports {
		address := net.JoinHostPort(bindAddress, strconv.Itoa(p.port))
		err := probePort(ctx, address)
		switch {
		case err == nil:
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("port %d is in use: stop the other process or pass %s", p.port, p.flag)
		case errors.Is(err, syscall.EACCES):
			return fmt.Errorf("port %d needs privileges: pass a %s above 1023", p.port, p.flag)
		default:
			return fmt.Errorf("cannot listen on port %d (%w): pass another %s", p.port, err, p.flag)
		}
	}
	return nil
}

// probePort listens on address briefly. It first connects, because some systems allow overlapping addresses.
func probePort(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: probeTimeout}
	if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
		return errors.Join(syscall.EADDRINUSE, conn.Close())
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func abbreviate(s string, limit int) string {
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
