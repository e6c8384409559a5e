// Package replicasnapshot keeps in a file what a server knows of others, so that it can
// start while they are away: as a process that has lost its connections, it goes by what it
// has known last.
//
//	informers ─► file, at most each 30 s and at the end ─► informers of the next start
//
// The file is replaced as a whole. One that is damaged, of another server or too old is
// not used.
package replicasnapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

const (
	// saveInterval is the time between two saves.
	saveInterval = 30 * time.Second
	// refreshInterval is when what has not changed is saved again: its age is how long
	// ago it was known to be so.
	refreshInterval = 10 * time.Minute
	// format is that of the file.
	format = 1
	// directoryMode and fileMode keep others from reading what is replicated.
	directoryMode, fileMode = 0o700, 0o600
)

// Source is an informer.
type Source interface {
	// Name is what its objects are saved under.
	Name() string
	// Save returns what it holds, and fails unless that is complete.
	Save() ([]json.RawMessage, error)
	// Restore has it begin with that.
	Restore(saved []json.RawMessage) error
	// Changes counts the changes of what it holds.
	Changes() uint64
}

// Config says what is kept where.
type Config struct {
	// File is where. Its directory is made where there is none.
	File string
	// Server is the name of the server whose file it is.
	Server string
	// MaxAge is how old a file may be that is used; 0: any age.
	MaxAge time.Duration
	// Sources do not run before Restore has returned.
	Sources []Source
}

// Snapshot keeps a file. Call Restore, and then Run.
type Snapshot struct {
	config  Config
	saved   time.Time
	changes uint64
}

// New returns a snapshot. It reads and writes nothing.
func New(config Config) *Snapshot { return &Snapshot{config: config} }

// header is the first line of a file; what it is the sum of follows.
type header struct {
	Format int       `json:"format"`
	Server string    `json:"server"`
	Time   time.Time `json:"time"`
	SHA256 string    `json:"sha256"`
}

// Restore has the sources begin with what the file has. Without a file that can be used,
// which the log says, they begin with nothing.
func (s *Snapshot) Restore(ctx context.Context) {
	if len(s.config.Sources) == 0 {
		return
	}
	logger := klog.FromContext(ctx).WithValues("file", s.config.File)
	h, objects, err := s.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return
	case err != nil:
		logger.Error(err, "Cannot use what was known of other shards before the start; what they have is known when the cache server answers")
		return
	}
	for _, source := range s.config.Sources {
		saved, ok := objects[source.Name()]
		if !ok {
			continue // of a former version
		}
		if err := source.Restore(saved); err != nil {
			logger.Error(err, "Cannot use a part of what was known of other shards before the start", "informer", source.Name())
		}
	}
	logger.Info("Starting with what was known of other shards, until the cache server answers", "age", time.Since(h.Time).Round(time.Second))
}

func (s *Snapshot) read() (h header, objects map[string][]json.RawMessage, err error) {
	content, err := os.ReadFile(s.config.File)
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
		return h, nil, fmt.Errorf("the file has format %d, and this version reads %d", h.Format, format)
	case h.Server != s.config.Server:
		return h, nil, fmt.Errorf("the file is that of %q, and this is %q", h.Server, s.config.Server)
	case h.SHA256 != hex.EncodeToString(sum[:]):
		return h, nil, errDamaged
	case s.config.MaxAge > 0 && age > s.config.MaxAge:
		return h, nil, fmt.Errorf("the file is %s old, and may be %s: raise --replica-snapshot-max-age to use it", age.Round(time.Second), s.config.MaxAge)
	}
	if err := json.Unmarshal(body, &objects); err != nil {
		return h, nil, errors.Join(errDamaged, err)
	}
	return h, objects, nil
}

var errDamaged = errors.New("the file is damaged")

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
		if err := s.Save(); err != nil {
			klog.FromContext(ctx).V(2).Info("Not saving what is known of other shards", "file", s.config.File, "reason", err.Error())
		}
	}
	return nil
}

// Save writes the file, unless it says the same already. It fails, and leaves the file
// that there is, as long as not all sources are complete.
func (s *Snapshot) Save() error {
	var changes uint64
	for _, source := range s.config.Sources {
		changes += source.Changes()
	}
	if !s.saved.IsZero() && changes == s.changes && time.Since(s.saved) < refreshInterval {
		return nil
	}
	objects := make(map[string][]json.RawMessage, len(s.config.Sources))
	for _, source := range s.config.Sources {
		saved, err := source.Save()
		if err != nil {
			return err
		}
		objects[source.Name()] = saved
	}
	body, err := json.Marshal(objects)
	if err != nil {
		return fmt.Errorf("encoding what is known of other shards: %w", err)
	}
	sum, now := sha256.Sum256(body), time.Now()
	first, err := json.Marshal(header{Format: format, Server: s.config.Server, Time: now.UTC(), SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return fmt.Errorf("encoding the header: %w", err)
	}
	if err := replace(s.config.File, append(append(first, '\n'), body...)); err != nil {
		return err
	}
	s.saved, s.changes = now, changes
	return nil
}

// replace writes a file as a whole.
func replace(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), directoryMode); err != nil {
		return err
	}
	temporary := file + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(temporary, file)
}
