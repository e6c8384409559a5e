// Package snapshot keeps what a server knows of others, so that it can start while
// they are away: as a process that has lost its connections, it goes by what it has known
// last.
//
//	informers ─► store, at most each 30 s and at the end ─► informers of the next start
//
// A store has one snapshot, which is replaced as a whole. One that is damaged, of another
// server, of other data of this one, or too old is not used.
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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

const (
	// saveInterval is the time between two saves.
	saveInterval = 30 * time.Second
	// refreshInterval is when what has not changed is saved again: its age is how long
	// ago it was known to be so.
	refreshInterval = 10 * time.Minute
	// format is the version of the format of a snapshot.
	format = 2
	// lastSave bounds the save at the end.
	lastSave = 10 * time.Second
)

// Store keeps one value.
type Store interface {
	// Load returns the value, or an error that is fs.ErrNotExist.
	Load(ctx context.Context) ([]byte, error)
	// Replace puts another one in its place; there is never a part of one.
	Replace(ctx context.Context, value []byte) error
	// String says in logs where that is.
	String() string
}

// Source is an informer.
type Source interface {
	// Name is what its objects are saved under.
	Name() string
	// Resource is that of its objects.
	Resource() schema.GroupResource
	// Save returns what it holds, and fails unless that is complete.
	Save() ([]json.RawMessage, error)
	// Restore has it begin with that.
	Restore(saved []json.RawMessage) error
	// Changes counts the changes of what it holds.
	Changes() uint64
}

// Config says what is kept where.
type Config struct {
	// Store is where.
	Store Store
	// Seal makes what is stored of what is saved of a resource, and Open the reverse. Nil
	// is that they are the same.
	Seal, Open func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error)
	// Server is the name of the server whose snapshot it is, and Data that of its data, if it has one:
	// another installation may have a server of the same name.
	Server, Data string
	// MaxAge is how old a snapshot may be that is used; 0: any age.
	MaxAge time.Duration
	// Sources do not run before Restore has returned.
	Sources []Source
}

// Snapshot keeps one. Call Restore, and then Run.
type Snapshot struct {
	config  Config
	saved   time.Time
	changes uint64
}

// New returns a Snapshot. It reads and writes nothing.
func New(config Config) *Snapshot { return &Snapshot{config: config} }

// header is the first line of a snapshot; what it is the sum of follows.
type header struct {
	Format int       `json:"format"`
	Server string    `json:"server"`
	Data   string    `json:"data,omitempty"`
	Time   time.Time `json:"time"`
	SHA256 string    `json:"sha256"`
}

// Restore has the sources begin with what is stored. Without a snapshot that can be used,
// which the log says, they begin with nothing.
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
		logger.Error(err, "Cannot use what was known of other shards before the start; what they have is known when the cache server answers")
		return
	}
	for _, source := range s.config.Sources {
		stored, ok := objects[source.Name()]
		if !ok {
			continue // of a former version
		}
		if err := s.restore(ctx, source, stored); err != nil {
			logger.Error(err, "Cannot use a part of what was known of other shards before the start", "informer", source.Name())
		}
	}
	logger.Info("Starting with what was known of other shards, until the cache server answers", "age", time.Since(h.Time).Round(time.Second))
}

// restore has a source begin with what is stored of it: a list of objects, or the same
// sealed, as a string.
func (s *Snapshot) restore(ctx context.Context, source Source, stored []byte) error {
	if s.config.Open != nil {
		var sealed []byte
		if err := json.Unmarshal(stored, &sealed); err != nil {
			sealed = stored // plain: whether that may be is for Open to say
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
		return h, nil, fmt.Errorf("it has format %d, and this version reads %d", h.Format, format)
	case h.Server != s.config.Server:
		return h, nil, fmt.Errorf("it is that of %q, and this is %q", h.Server, s.config.Server)
	case h.Data != s.config.Data:
		return h, nil, fmt.Errorf("it is that of a server %q with other data: another installation, or one before the data were made anew", h.Server)
	case h.SHA256 != hex.EncodeToString(sum[:]):
		return h, nil, errDamaged
	case s.config.MaxAge > 0 && age > s.config.MaxAge:
		return h, nil, fmt.Errorf("it is %s old, and may be %s: raise --replica-snapshot-max-age to use it", age.Round(time.Second), s.config.MaxAge)
	}
	if err := json.Unmarshal(body, &objects); err != nil {
		return h, nil, errors.Join(errDamaged, err)
	}
	return h, objects, nil
}

var errDamaged = errors.New("it is damaged")

// Run saves what changes, until ctx is done, and once more then. Without sources it does
// nothing.
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
		if err := s.save(ctx); err != nil {
			klog.FromContext(ctx).V(2).Info("Not saving what is known of other shards", "snapshot", s.config.Store.String(), "reason", err.Error())
		}
	}
	return nil
}

// save is Save for a context that may be done.
func (s *Snapshot) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	return s.Save(ctx)
}

// Save stores a snapshot, unless the one that is there says the same. It fails, and leaves that
// as it is, as long as not all sources are complete.
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
		return fmt.Errorf("encoding what is known of other shards: %w", err)
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

// sealed returns what is to be stored of a source.
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
		return nil, fmt.Errorf("encrypting what is known of other shards: %w", err)
	}
	return json.Marshal(text)
}
