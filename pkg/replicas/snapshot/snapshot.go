// Package snapshot saves the replicas of other servers' objects, so that a server can start without these.
//
//	informers ─► store, at most every 30 s and at the end ─► informers of the next start
//
// A snapshot is not used if it is damaged, of another server, of other data of this server, or too old.
package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

const (
	// saveInterval is the time between two saves.
	saveInterval = 30 * time.Second
	// refreshInterval is the time after which unchanged data are saved again to renew their time.
	refreshInterval = 10 * time.Minute
	// format is the version of the format of a snapshot.
	format = 2
	// lastSave is the timeout of a save.
	lastSave = 10 * time.Second
)

// Store stores one value.
type Store interface {
	// Load returns the value, or an error that is fs.ErrNotExist.
	Load(ctx context.Context) ([]byte, error)
	// Replace replaces the value atomically.
	Replace(ctx context.Context, value []byte) error
	// String returns the location for logs.
	String() string
}

// Source is an informer.
type Source interface {
	// Name is the key of its objects in the snapshot.
	Name() string
	// Resource is the resource of its objects.
	Resource() schema.GroupResource
	// Save returns its objects, and fails unless these are complete.
	Save() ([]json.RawMessage, error)
	// Restore loads saved objects.
	Restore(saved []json.RawMessage) error
	// Changes counts the changes of its objects.
	Changes() uint64
}

// Config configures a Snapshot.
type Config struct {
	Store Store
	// Seal encrypts the content of a resource before it is stored, and Open decrypts it. Both may be nil.
	Seal, Open func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error)
	// Server is the name of the server, and Data the identity of its data, if any.
	Server, Data string
	// MaxAge is the maximum age of a snapshot that is used; 0 means no limit.
	MaxAge time.Duration
	// Sources must not run before Restore has returned.
	Sources []Source
}

// Snapshot saves and restores sources: call Restore, and then Run.
type Snapshot struct {
	config  Config
	saved   time.Time
	changes uint64
}

// NewReplicaSnapshot returns a Snapshot.
func NewReplicaSnapshot(config Config) *Snapshot { return &Snapshot{config: config} }

// header is the first line of a snapshot. SHA256 is the checksum of the rest.
type header struct {
	Format int       `json:"format"`
	Server string    `json:"server"`
	Data   string    `json:"data,omitempty"`
	Time   time.Time `json:"time"`
	SHA256 string    `json:"sha256"`
}

// Restore loads the sources from the store. Without a usable snapshot, they start empty and the reason is logged.
func (s *Snapshot) Restore(ctx context.Context) {
	if len(s.config.Sources) == 0 {
		return
	}
	logger := klog.FromContext(ctx).WithValues("snapshot", s.config.Store.String())
	h, objects, err := s.read(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		logger.Error(err, "Failed to restore the replicas of other shards, waiting for the cache server")
		return
	}
	for _, source := range s.config.Sources {
		stored, ok := objects[source.Name()]
		if !ok {
			continue // the source was added in this release
		}
		if err := s.restore(ctx, source, stored); err != nil {
			logger.Error(err, "Failed to restore the replicas of a resource", "informer", source.Name())
		}
	}
	logger.Info("Restored the replicas of other shards", "age", time.Since(h.Time).Round(time.Second))
}

// restore loads a source from a list of objects, or from a string with the encrypted list.
func (s *Snapshot) restore(ctx context.Context, source Source, stored []byte) error {
	if s.config.Open != nil {
		var sealed []byte
		if err := json.Unmarshal(stored, &sealed); err != nil {
			sealed = stored // plain text, which Open may reject
		}
		var err error
		if stored, err = s.config.Open(ctx, source.Resource(), sealed); err != nil {
			return err
		}
	}
	var saved []json.RawMessage
	if err := json.Unmarshal(stored, &saved); err != nil {
		return errors.Join(errDamaged, err)
	}
	return source.Restore(saved)
}

func (s *Snapshot) read(ctx context.Context) (h header, objects map[string]json.RawMessage, err error) {
	content, err := s.config.Store.Load(ctx)
	if err != nil {
		return h, nil, err
	}
	first, body, found := bytes.Cut(content, []byte("\n"))
	if err := json.Unmarshal(first, &h); err != nil || !found {
		return h, nil, errors.Join(errDamaged, err)
	}
	sum := sha256.Sum256(body)
	age := time.Since(h.Time)
	switch {
	case h.Format != format:
		return h, nil, fmt.Errorf("it has format %d, but this version requires %d", h.Format, format)
	case h.Server != s.config.Server:
		return h, nil, fmt.Errorf("it belongs to server %q, but this is %q", h.Server, s.config.Server)
	case h.Data != s.config.Data:
		return h, nil, fmt.Errorf("it belongs to a server %q with other data, e.g. of another installation or from before the data was recreated", h.Server)
	case h.SHA256 != hex.EncodeToString(sum[:]):
		return h, nil, errDamaged
	case s.config.MaxAge > 0 && age > s.config.MaxAge:
		return h, nil, fmt.Errorf("it is %s old, but at most %s is allowed: raise --replica-snapshot-max-age to use it", age.Round(time.Second), s.config.MaxAge)
	}
	if err := json.Unmarshal(body, &objects); err != nil {
		return h, nil, errors.Join(errDamaged, err)
	}
	return h, objects, nil
}

var errDamaged = errors.New("it is damaged")

// Run saves changes until ctx is done, and once afterwards. Without sources it does nothing.
func (s *Snapshot) Run(ctx context.Context) error {
	if len(s.config.Sources) == 0 {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(saveInterval)
	defer ticker.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-ticker.C:
		}
		saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
		err := s.Save(saving)
		cancel()
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to save the replicas of other shards", "snapshot", s.config.Store.String(), "reason", err.Error())
		}
	}
	return nil
}

// Save stores a snapshot unless the stored one is up to date. It fails if a source is incomplete.
func (s *Snapshot) Save(ctx context.Context) error {
	var changes uint64
	for _, source := range s.config.Sources {
		changes += source.Changes()
	}
	if !s.saved.IsZero() && changes == s.changes && time.Since(s.saved) < refreshInterval {
		return nil
	}
	objects := make(map[string]json.RawMessage, len(s.config.Sources))
	for _, source := range s.config.Sources {
		var err error
		if objects[source.Name()], err = s.sealed(ctx, source); err != nil {
			return err
		}
	}
	body, err := json.Marshal(objects)
	if err != nil {
		return fmt.Errorf("encoding the replicas of other shards: %w", err)
	}
	sum, now := sha256.Sum256(body), time.Now()
	first, err := json.Marshal(header{Format: format, Server: s.config.Server, Data: s.config.Data, Time: now.UTC(), SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return fmt.Errorf("encoding the header: %w", err)
	}
	if err := s.config.Store.Replace(ctx, append(append(first, '\n'), body...)); err != nil {
		return err
	}
	s.saved, s.changes = now, changes
	return nil
}

func (s *Snapshot) sealed(ctx context.Context, source Source) (json.RawMessage, error) {
	saved, err := source.Save()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(saved)
	if err != nil || s.config.Seal == nil {
		return text, err
	}
	if text, err = s.config.Seal(ctx, source.Resource(), text); err != nil {
		return nil, fmt.Errorf("encrypting the replicas of other shards: %w", err)
	}
	return json.Marshal(text)
}

// directoryMode and fileMode protect the replicas from other users.
const directoryMode, fileMode = 0o700, 0o600

// File is a store in the named file. Its directory is created if necessary.
type File string

var _ Store = File("")

func (f File) String() string { return string(f) }

// Load implements Store.
func (f File) Load(context.Context) ([]byte, error) { return os.ReadFile(string(f)) }

// Replace implements Store.
func (f File) Replace(_ context.Context, value []byte) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), directoryMode); err != nil {
		return err
	}
	temporary := string(f) + ".new"
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(value)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, string(f))
}

// Directory contains one snapshot per source, in files. Nil stores nothing.
type Directory struct {
	Path string
	// Config configures the snapshots, except for store and sources.
	Config Config
}

// Of returns the snapshot of a source.
func (d *Directory) Of(source Source) *Snapshot {
	if d == nil {
		return NewReplicaSnapshot(Config{})
	}
	config := d.Config
	config.Store, config.Sources = File(d.file(source)), []Source{source}
	return NewReplicaSnapshot(config)
}

// Forget deletes the snapshot of a source, if there is one.
func (d *Directory) Forget(source Source) error {
	if d == nil {
		return nil
	}
	if err := os.Remove(d.file(source)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Prune deletes files that are too old to be used.
func (d *Directory) Prune() error {
	if d == nil || d.Config.MaxAge <= 0 {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(d.Path, "*"))
	for _, file := range files {
		info, failed := os.Stat(file)
		if failed == nil && time.Since(info.ModTime()) > d.Config.MaxAge {
			failed = os.Remove(file)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// The file name is a hash because names of sources contain arbitrary characters.
func (d *Directory) file(source Source) string {
	sum := sha256.Sum256([]byte(source.Name()))
	return filepath.Join(d.Path, hex.EncodeToString(sum[:])+".json")
}
