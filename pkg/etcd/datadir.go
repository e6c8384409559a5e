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
	// formatVersion is the version of the data format: key layout and encoding.
	// It is in the data directory of an embedded etcd and, with any etcd, in the
	// identity key. Increase it with a change that a binary of an adjacent release
	// cannot read. Version 1 and data without a version are from before v0.1.0.
	formatVersion = 2

	formatFile = "shardplane-format"
	// firstStartFile exists until etcd has been ready once.
	firstStartFile = "shardplane-first-start"
	lockFile       = "lock"
	memberDir      = "member"

	dirMode  = 0o700
	fileMode = 0o600

	// dbLockTimeout bounds the wait for a database that another process has
	// open; etcd itself would wait forever.
	dbLockTimeout = 200 * time.Millisecond
)

var (
	// ErrDataDirInUse says that another process uses the data directory.
	ErrDataDirInUse = errors.New("the data directory is in use by another process")
	// ErrDataDirFormat says that the data directory was written by another
	// version, or by something else than Shardplane.
	ErrDataDirFormat = errors.New("the data directory has a format that this version does not read")
	// ErrDataDirCorrupt says that the data directory's content is damaged.
	ErrDataDirCorrupt = errors.New("the data directory is corrupt")
)

// dataDir is a locked data directory.
type dataDir struct {
	path string
	lock *fileutil.LockedFile
}

// openDataDir creates the directory where it is missing, locks it and checks
// that it is fit for etcd to open.
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
	if err := errors.Join(d.discardFirstStart(), d.check()); err != nil {
		d.close()
		return nil, err
	}
	// Purely for the error message above; the lock itself is the kernel's and
	// ends with the process, so that a crash leaves nothing to clean up.
	if err := writeLockHolder(lock); err != nil {
		d.close()
		return nil, fmt.Errorf("cannot write to the data directory %s: %w", path, err)
	}
	return d, nil
}

func (d *dataDir) close() {
	// The file stays, empty: to unlink a locked file is a race with who waits
	// for it.
	_ = d.lock.Truncate(0)
	_ = d.lock.Close()
}

// discardFirstStart removes what a first start has left that was ended before
// etcd was ready. An etcd that has written its log but not yet the entry that
// makes it a member of its own cluster never elects a leader again. Nothing is
// lost: the client is handed out only after ready.
func (d *dataDir) discardFirstStart() error {
	if _, err := os.Stat(filepath.Join(d.path, firstStartFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(d.path, memberDir)); err != nil {
		return fmt.Errorf("cannot remove what an interrupted first start left in %s: %w", d.path, err)
	}
	return nil
}

// ready says that etcd has been ready: from now on the data counts.
func (d *dataDir) ready() error {
	err := os.Remove(filepath.Join(d.path, firstStartFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write to the data directory: %w", err)
	}
	// The removal must be on disk before the first write is acknowledged.
	return syncDir(d.path)
}

// syncDir has what was made and removed in a directory survive a crash.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot read the data directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("cannot write to the data directory: %w", err)
	}
	return nil
}

func (d *dataDir) check() error {
	if err := d.checkFormat(); err != nil {
		return err
	}
	return d.checkDatabase()
}

// checkFormat reads the directory's format, or writes it into a new directory.
// It is written before etcd writes anything, so that data without a format was
// not written by Shardplane.
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
		return fmt.Errorf("%w: %s holds etcd data but no %s file, so it was not written by shardplane: choose another --data-dir",
			ErrDataDirFormat, d.path, formatFile)
	}
	if err := writeFileSync(filepath.Join(d.path, firstStartFile), nil); err != nil {
		return err
	}
	return writeFileSync(path, []byte(strconv.Itoa(formatVersion)+"\n"))
}

// checkDatabase opens the database read-only. etcd opens it on a goroutine of
// its own, where a damaged file would end the process with a stack trace.
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
		// A page beyond the end of the file would be a bus error later.
		if tx.Size() > info.Size() {
			return corrupt(path, fmt.Errorf("the file has %d bytes of %d", info.Size(), tx.Size()))
		}
		return nil
	})
}

func corrupt(path string, cause error) error {
	return fmt.Errorf("%w: restore %s from a backup, or remove the data directory to start empty: %w", ErrDataDirCorrupt, path, cause)
}

func writeLockHolder(lock *fileutil.LockedFile) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// lockHolder returns " (process N)" where the holder of the lock is known.
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
