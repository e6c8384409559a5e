package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/backend"
)

// ErrExternal is returned by Handle.Snapshot for an external etcd, which must be saved with etcd's own tools.
var ErrExternal = errors.New("the etcd of this server is external: save it with `etcdctl snapshot save`, which includes the data of all servers that share it")

// Snapshot is a consistent copy of an embedded etcd in etcd's own format: the database, followed by its SHA-256.
// It must be closed, because it prevents the database from freeing pages. It is not safe for concurrent use.
type Snapshot struct {
	ctx      context.Context //nolint:containedctx // limits the lifetime of the snapshot, which belongs to one request
	database backend.Snapshot
	calls    *callCounter
}

// Snapshot opens a snapshot of an embedded etcd while the server continues, until ctx ends. Otherwise, see ErrExternal.
func (h *Handle) Snapshot(ctx context.Context) (*Snapshot, error) {
	if h.embedded == nil {
		return nil, ErrExternal
	}
	return h.embedded.Snapshot(ctx)
}

// Snapshot opens a snapshot while the server continues. ctx ends it.
func (s *Server) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.calls.begin(); err != nil {
		return nil, err
	}
	return &Snapshot{ctx: ctx, database: s.etcd.Server.Backend().Snapshot(), calls: s.calls}, nil
}

// Size returns the number of bytes that WriteTo writes.
func (s *Snapshot) Size() int64 { return s.database.Size() + sha256.Size }

// WriteTo writes the snapshot to w. It fails if the context of the snapshot ends, or etcd stops.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sum := sha256.New()
	n, err := s.database.WriteTo(io.MultiWriter(endingWriter{w, s}, sum))
	if err != nil {
		return n, fmt.Errorf("writing a snapshot: %w", err)
	}
	m, err := w.Write(sum.Sum(nil))
	return n + int64(m), err
}

// Close ends the snapshot.
func (s *Snapshot) Close() error {
	defer s.calls.RUnlock()
	return s.database.Close()
}

// endingWriter fails when the snapshot has to end.
type endingWriter struct {
	io.Writer
	snapshot *Snapshot
}

func (w endingWriter) Write(p []byte) (int, error) {
	if err := w.snapshot.ctx.Err(); err != nil {
		return 0, err
	}
	if w.snapshot.calls.stopping() {
		return 0, errStopping
	}
	return w.Writer.Write(p)
}

// minRevisionBump is the minimum difference of the revisions of a restored store and its snapshot.
const minRevisionBump = 1_000_000_000

// ErrSnapshot is returned if a file is not a valid snapshot.
var ErrSnapshot = errors.New("the snapshot is damaged")

// RestoreConfig configures a restore.
type RestoreConfig struct {
	File string
	// DataDir is the data directory of the server. The subdirectory of the embedded etcd must be missing or empty.
	DataDir string
	// Want is the required identity of the data, and Prefix the prefix of its keys.
	Want   Identity
	Prefix string
}

// Restored is the result of a restore.
type Restored struct {
	// From is the revision of the snapshot, To the first revision of the restored store.
	From, To int64
}

// Restore creates the data directory of an embedded etcd from a snapshot. It verifies the snapshot, its identity, and
// that etcd can open the data, before it moves the data into place. If it fails, no directory remains.
//
// The restored store has no history. Its revision, the time in microseconds since 1970, is one that no client has seen,
// so that no resourceVersion is used twice. Earlier watches and continue tokens get status 410.
func Restore(ctx context.Context, c RestoreConfig) (r Restored, err error) {
	if sum, err := Checksum(c.File); err != nil {
		return r, fmt.Errorf("cannot read the snapshot: %w", err)
	} else if sum == nil {
		return r, fmt.Errorf("%w: %s has no valid checksum at its end: restore another one", ErrSnapshot, c.File)
	}
	target := Directory(c.DataDir)
	if !fileutil.DirEmpty(target) && fileutil.Exist(target) {
		return r, fmt.Errorf("%s is not empty: stop the server and move that directory elsewhere, or restore into another --data-dir", target)
	}
	staging, release, err := stage(target + ".restoring")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, release()) }()
	made := filepath.Join(staging, subdirectory)
	if r, err = c.unpack(ctx, made); err != nil {
		return r, err
	}
	if err = c.tryStart(ctx, made, r.To); err != nil {
		return r, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("cannot replace the empty directory: %w", err)
	}
	if err := os.Rename(made, target); err != nil {
		return r, fmt.Errorf("cannot move the restored data to %s: %w", target, err)
	}
	return r, SyncDir(c.DataDir)
}

// Checksum returns the checksum at the end of a snapshot, or nil if it is not valid.
func Checksum(path string) (sum []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil || info.Size() <= sha256.Size {
		return nil, err
	}
	hash, end := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(hash, file, info.Size()-sha256.Size); err != nil {
		return nil, err
	}
	if _, err = io.ReadFull(file, end); err != nil || string(hash.Sum(nil)) != string(end) {
		return nil, err
	}
	return end, nil
}

// stage creates an empty directory for a single restore. release removes it.
func stage(path string) (dir string, release func() error, err error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return "", nil, fmt.Errorf("cannot create %s: choose a writable --data-dir: %w", path, err)
	}
	lock, err := fileutil.TryLockFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, fileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return "", nil, fmt.Errorf("%w: another restore into %s is running: wait for it", ErrDataDirInUse, path)
	}
	if err != nil {
		return "", nil, fmt.Errorf("cannot write to %s: choose a writable --data-dir: %w", path, err)
	}
	release = func() error { return errors.Join(os.RemoveAll(path), lock.Close()) }
	// A killed restore may have left data.
	if err := os.RemoveAll(filepath.Join(path, subdirectory)); err != nil {
		return "", nil, errors.Join(err, release())
	}
	return path, release, nil
}

func (c RestoreConfig) unpack(ctx context.Context, dir string) (r Restored, err error) {
	defer func() {
		if p := recover(); p != nil { // a fatal error of etcd
			err = fmt.Errorf("%w: etcd cannot read %s: %v", ErrSnapshot, c.File, p)
		}
	}()
	manager := snapshot.NewV3(newLogger(ctx))
	status, err := manager.Status(c.File)
	if err != nil {
		return r, fmt.Errorf("%w: etcd cannot read %s: restore another one: %w", ErrSnapshot, c.File, err)
	}
	r.From = status.Revision
	r.To = max(time.Now().UnixMicro(), r.From+minRevisionBump)
	if err := manager.Restore(snapshot.RestoreConfig{
		SnapshotPath: c.File, OutputDataDir: dir,
		Name: memberName, PeerURLs: []string{peerURL}, InitialCluster: memberName + "=" + peerURL, InitialClusterToken: clusterToken,
		RevisionBump: uint64(r.To - r.From), MarkCompacted: true, //nolint:gosec // it is positive
	}); err != nil {
		return r, fmt.Errorf("restoring %s: %w", c.File, err)
	}
	if err := writeFileSync(filepath.Join(dir, formatFile), []byte(strconv.Itoa(formatVersion)+"\n")); err != nil {
		return r, err
	}
	for _, made := range []string{filepath.Join(dir, memberDir, "snap"), filepath.Join(dir, memberDir, "wal"), filepath.Join(dir, memberDir), dir} {
		if err := SyncDir(made); err != nil {
			return r, err
		}
	}
	return r, nil
}

// tryStart starts an etcd with the restored data and compares its identity.
func (c RestoreConfig) tryStart(ctx context.Context, dir string, revision int64) error {
	server, err := Start(ctx, Config{DataDir: dir})
	if err != nil {
		return fmt.Errorf("cannot open the restored data: %w", err)
	}
	defer server.Stop()
	if found := server.etcd.Server.KV().Rev(); found < revision {
		return fmt.Errorf("the restored data has revision %d instead of %d", found, revision)
	}
	h := &Handle{client: server.Client(), where: "the snapshot " + c.File, prefix: c.Prefix}
	found, err := h.identity(ctx, c.Want)
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("%w: %s has no keys below %s, the prefix of the %s", ErrIdentity, h.where, c.Prefix, c.Want)
	}
	return h.compare(*found, c.Want)
}
