package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"time"
)

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
