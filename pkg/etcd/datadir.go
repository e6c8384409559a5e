package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

const (
	// formatVersion is the version of key layout and encoding, in the data directory of an embedded etcd and in the
	// identity key. It must be increased by changes that a binary of an adjacent release cannot read. Version 1 and
	// data without a version precede v0.1.0.
	formatVersion = 2

	formatFile = "shardplane-format"
	// firstStartFile exists until etcd was ready for the first time.
	firstStartFile = "shardplane-first-start"
	lockFile       = "lock"
	memberDir      = "member"

	dirMode  = 0o700
	fileMode = 0o600

	// dbLockTimeout limits the wait for a database that another process has open. etcd would wait forever.
	dbLockTimeout = 200 * time.Millisecond
)

var (
	// ErrDataDirInUse is returned if another process uses the data directory.
	ErrDataDirInUse = errors.New("the data directory is in use by another process")
	// ErrDataDirFormat is returned if the data directory was not written by a compatible version of Shardplane.
	ErrDataDirFormat = errors.New("the data directory has a format that this version does not read")
	// ErrDataDirCorrupt is returned if the data directory is damaged.
	ErrDataDirCorrupt = errors.New("the data directory is corrupt")
)

type dataDir struct {
	path string
	lock *fileutil.LockedFile
}

// openDataDir creates the directory if it is missing, locks it and checks its content.
func openDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, fmt.Errorf("cannot create the data directory %s: choose a writable --data-dir: %w", path, err)
	}
	lock, err := fileutil.TryLockFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, fileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, fmt.Errorf("%w (%s): stop that process%s or choose another --data-dir", ErrDataDirInUse, path, lockHolder(path))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write to the data directory %s: choose a writable --data-dir: %w", path, err)
	}
	d := &dataDir{path: path, lock: lock}
	for _, step := range []func() error{d.discardFirstStart, d.checkFormat, d.checkDatabase, d.writeLockHolder} {
		if err := step(); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

func (d *dataDir) close() {
	// The file remains, because unlinking a locked file is a race with a process that waits for the lock.
	_ = d.lock.Truncate(0)
	_ = d.lock.Close()
}

// discardFirstStart removes the data of a first start that ended before etcd was ready, i.e. before there was a client.
// If etcd has written its log, but not the entry that adds it to its own cluster, it never elects a leader.
func (d *dataDir) discardFirstStart() error {
	if _, err := os.Stat(filepath.Join(d.path, firstStartFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(d.path, memberDir)); err != nil {
		return fmt.Errorf("cannot remove the data of an interrupted first start in %s: %w", d.path, err)
	}
	return nil
}

// ready records that etcd was ready, so that the data must be kept.
func (d *dataDir) ready() error {
	err := os.Remove(filepath.Join(d.path, firstStartFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write to the data directory: %w", err)
	}
	// The removal must be on disk before the first write is acknowledged.
	return SyncDir(d.path)
}

// SyncDir makes created and removed files in a directory survive a crash.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync the directory: %w", err)
	}
	return nil
}

// checkFormat checks the directory's format, or writes it into a new directory before etcd writes anything.
// Therefore data without a format was not written by Shardplane.
func (d *dataDir) checkFormat() error {
	path := filepath.Join(d.path, formatFile)
	content, err := os.ReadFile(path)
	switch {
	case err == nil:
		format := strings.TrimSpace(string(content))
		if format != strconv.Itoa(formatVersion) {
			return fmt.Errorf("%w: %s has format %q, this version reads %d: run the version that wrote it or choose another --data-dir",
				ErrDataDirFormat, path, format, formatVersion)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot read the format of the data directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(d.path, memberDir)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s contains etcd data but no %s file, so it was not written by shardplane: choose another --data-dir",
			ErrDataDirFormat, d.path, formatFile)
	}
	if err := writeFileSync(filepath.Join(d.path, firstStartFile), nil); err != nil {
		return err
	}
	return writeFileSync(path, []byte(strconv.Itoa(formatVersion)+"\n"))
}

// checkDatabase opens the database read-only. In etcd's own goroutine, a damaged file would crash the process.
func (d *dataDir) checkDatabase() (err error) {
	path := filepath.Join(d.path, memberDir, "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the etcd database: %w", err)
	}
	if info.Size() == 0 {
		return corrupt(path, errors.New("the database is empty"))
	}
	db, err := bbolt.Open(path, fileMode, &bbolt.Options{ReadOnly: true, Timeout: dbLockTimeout})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("%w (%s is locked): stop the etcd that runs there or choose another --data-dir", ErrDataDirInUse, path)
	}
	if err != nil {
		return corrupt(path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		// Reading a page beyond the end of the file would cause SIGBUS later.
		if tx.Size() > info.Size() {
			return corrupt(path, fmt.Errorf("the file has %d bytes of %d", info.Size(), tx.Size()))
		}
		return nil
	})
}

func corrupt(path string, cause error) error {
	return fmt.Errorf("%w: restore %s from a backup, or remove the data directory to start empty: %w", ErrDataDirCorrupt, path, cause)
}

// writeLockHolder writes the PID, which is used only in an error message.
func (d *dataDir) writeLockHolder() error {
	err := d.lock.Truncate(0)
	if err == nil {
		_, err = d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("cannot write to the data directory %s: %w", d.path, err)
	}
	return nil
}

// lockHolder returns " (process N)" if the lock file contains a PID.
func lockHolder(path string) string {
	content, err := os.ReadFile(filepath.Join(path, lockFile))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}

func writeFileSync(path string, content []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return fmt.Errorf("cannot write to the data directory: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("cannot write to the data directory: %w", err)
	}
	return f.Sync()
}
