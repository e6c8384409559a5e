package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

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

// Snapshot opens a snapshot of an embedded etcd while the server continues. ctx ends it. It returns ErrExternal if
// the etcd is not embedded.
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
	sum := &summingWriter{Writer: w, snapshot: s, sum: sha256.New()}
	n, err := s.database.WriteTo(sum)
	if err != nil {
		return n, fmt.Errorf("writing a snapshot: %w", err)
	}
	m, err := w.Write(sum.sum.Sum(nil))
	return n + int64(m), err
}

// Close ends the snapshot.
func (s *Snapshot) Close() error {
	defer s.calls.end()
	return s.database.Close()
}

// summingWriter computes the checksum, and fails when the snapshot has to end.
type summingWriter struct {
	io.Writer
	snapshot *Snapshot
	sum      hash.Hash
}

func (w *summingWriter) Write(p []byte) (int, error) {
	if err := w.snapshot.ctx.Err(); err != nil {
		return 0, err
	}
	if w.snapshot.calls.stopping() {
		return 0, errStopping
	}
	n, err := w.Writer.Write(p)
	w.sum.Write(p[:n]) // never fails
	return n, err
}
