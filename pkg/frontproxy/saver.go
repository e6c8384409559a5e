package frontproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// saveInterval is the time between two saves.
	saveInterval = time.Minute
	// savedSuffix is that of files with what is known of a shard, and writingInfix is in the
	// names of those that are being written.
	savedSuffix  = ".index"
	writingInfix = ".index.new-"
)

// errOtherShard says that a file is of another shard than its name says.
var errOtherShard = errors.New("the file is not of the shard that it is named after")

// saver keeps what the index knows of each shard, and its Shard object, in a file of a
// directory, so that the next process begins with it. Without a directory it does nothing.
type saver struct {
	directory string
	index     *workspaceindex.Index

	mu    sync.Mutex
	files map[string]*savedShard
}

// savedShard is what a file has.
type savedShard struct {
	// object and url are of the Shard object.
	object json.RawMessage
	url    string
	// from is how far the file goes that there was at the start. It is for the first follower.
	from workspaceindex.Revisions
	// follower knows how far the index goes; nil before there is one.
	follower *follower
	// file and to are of the file that this process has written, nil before; then, it had
	// changes and went up to revisions.
	file      *os.File
	to        *workspaceindex.SnapshotWriter
	changes   uint64
	revisions workspaceindex.Revisions
}

// newSaver makes the directory, if there is none.
func newSaver(directory string, index *workspaceindex.Index) (*saver, error) {
	s := &saver{directory: directory, index: index, files: map[string]*savedShard{}}
	if directory == "" {
		return s, nil
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("--index-directory: %w", err)
	}
	probe, err := os.CreateTemp(directory, "probe"+writingInfix)
	if err != nil {
		return nil, fmt.Errorf("--index-directory cannot be written: %w", err)
	}
	return s, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// restore puts into the index what the files have, and returns the Shard objects of these. What
// cannot be read is as if it were not there.
func (s *saver) restore(ctx context.Context) []json.RawMessage {
	if s.directory == "" {
		return nil
	}
	logger, start := klog.FromContext(ctx), time.Now()
	paths, err := filepath.Glob(filepath.Join(s.directory, "*"))
	if err != nil {
		logger.Error(err, "Cannot look for what was known before the start", "directory", s.directory)
	}
	var reading errgroup.Group
	reading.SetLimit(runtime.GOMAXPROCS(0))
	for _, path := range paths {
		base := filepath.Base(path)
		if strings.Contains(base, writingInfix) {
			_ = os.Remove(path) // of a process that was killed
			continue
		}
		if name, ok := strings.CutSuffix(base, savedSuffix); ok {
			reading.Go(func() error {
				if err := s.read(path, name); err != nil {
					logger.Error(err, "Cannot use what was known of a shard before the start; it is read anew", "shard", name, "file", path)
					s.index.DeleteShard(name) // what was read before the damage
				}
				return nil
			})
		}
	}
	_ = reading.Wait() // they do not fail
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := make([]json.RawMessage, 0, len(s.files))
	for _, file := range s.files {
		objects = append(objects, file.object)
	}
	if stats := s.index.Stats(); len(objects) > 0 {
		logger.Info("Starting with what was known of shards", "shards", len(objects), "logicalClusters", stats.LogicalClusters, "workspaces", stats.Workspaces, "took", time.Since(start))
	}
	return objects
}

// read puts a file into the index.
func (s *saver) read(path, name string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	saved := &savedShard{}
	read, err := s.index.ReadSnapshot(file, func(origin []byte) (string, error) {
		var shard corev1alpha1.Shard
		if err := json.Unmarshal(origin, &shard); err != nil {
			return "", fmt.Errorf("decoding the Shard object: %w", err)
		}
		if shard.Name != name {
			return "", fmt.Errorf("%w, but of %q", errOtherShard, shard.Name)
		}
		saved.url = shard.Spec.BaseURL
		return name, nil
	})
	if err != nil {
		return err
	}
	saved.object, saved.from = read.Origin, read.Revisions
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = saved
	return nil
}

// follows has a follower begin where the file ends that there was at the start, if the shard
// has the same address, and what it follows be saved.
func (s *saver) follows(f *follower, url string) {
	if s.directory == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	saved := s.files[f.shard]
	if saved == nil {
		saved = &savedShard{}
		s.files[f.shard] = saved
	}
	if strings.TrimSuffix(saved.url, "/") == url {
		f.resume(saved.from)
	}
	saved.follower, saved.url = f, ""
}

// remove removes the file of a shard that there is no more.
func (s *saver) remove(ctx context.Context, shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if saved := s.files[shard]; saved != nil {
		saved.close()
		delete(s.files, shard)
		if err := os.Remove(s.path(shard)); err != nil && !errors.Is(err, os.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Cannot remove what was known of a shard that is gone", "shard", shard)
		}
	}
}

func (s *saver) path(shard string) string { return filepath.Join(s.directory, shard+savedSuffix) }

func (f *savedShard) close() {
	if f.file != nil {
		_ = f.file.Close()
		f.file, f.to = nil, nil
	}
}

// save writes the files of shards of which something has changed, and to others how far they
// go by now. objectOf returns a Shard object.
func (s *saver) save(ctx context.Context, objectOf func(shard string) *corev1alpha1.Shard) {
	if s.directory == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	logger := klog.FromContext(ctx)
	begun := map[string]*savedShard{}
	writers := map[string]*workspaceindex.SnapshotWriter{}
	for name, saved := range s.files {
		object := objectOf(name)
		if object == nil || saved.follower == nil || !saved.follower.current() {
			continue // the former file is right
		}
		// In this order: what has changed up to the revisions is counted.
		next := &savedShard{revisions: saved.follower.revisions()}
		next.changes = s.index.Changes(name)
		if err := s.begin(saved, next, object); err != nil {
			logger.Error(err, "Cannot save what is known of a shard", "shard", name)
		}
		if next.to != nil {
			begun[name], writers[name] = next, next.to
		}
	}
	if len(begun) == 0 {
		return
	}
	s.index.WriteSnapshots(writers)
	for name, next := range begun {
		if err := s.end(s.files[name], next, name); err != nil {
			logger.Error(err, "Cannot save what is known of a shard", "shard", name)
		}
	}
}

// begin opens a file for next, unless that of saved says the same, but for the revisions.
func (s *saver) begin(saved, next *savedShard, object *corev1alpha1.Shard) error {
	if !next.revisions.Complete() {
		return nil // it is being read anew
	}
	var err error
	if next.object, err = json.Marshal(object); err != nil {
		return fmt.Errorf("encoding the Shard object: %w", err)
	}
	if saved.to != nil && saved.changes == next.changes && string(saved.object) == string(next.object) {
		if saved.revisions == next.revisions {
			return nil
		}
		if err := saved.to.End(next.revisions); err != nil {
			saved.close() // it is written anew the next time
			return err
		}
		saved.revisions = next.revisions
		return nil
	}
	if next.file, err = os.CreateTemp(s.directory, object.Name+writingInfix); err != nil {
		return err
	}
	next.to = workspaceindex.NewSnapshotWriter(next.file, next.object)
	return nil
}

// end puts the file of next in the place of that of saved.
func (s *saver) end(saved, next *savedShard, shard string) error {
	err := next.to.End(next.revisions)
	if err == nil {
		err = next.file.Sync()
	}
	if err == nil {
		err = os.Rename(next.file.Name(), s.path(shard))
	}
	if err != nil {
		return errors.Join(err, next.file.Close(), os.Remove(next.file.Name()))
	}
	saved.close()
	saved.object, saved.file, saved.to, saved.changes, saved.revisions = next.object, next.file, next.to, next.changes, next.revisions
	return nil
}

// close closes the files.
func (s *saver) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, saved := range s.files {
		saved.close()
	}
}
