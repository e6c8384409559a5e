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

// directoryMode and fileMode keep others from reading what is replicated.
const directoryMode, fileMode = 0o700, 0o600

// File is a store in the file of that name, whose directory is made where there is none.
type File string

var _ Store = File("")

// String implements Store.
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

// Directory keeps sources that come and go, each in a file of its own. Nil keeps nothing.
type Directory struct {
	// Path is where it is.
	Path string
	// Config is that of the snapshots, but for what Of says.
	Config Config
}

// Of returns the snapshot of a source.
func (d *Directory) Of(source Source) *Snapshot {
	if d == nil {
		return New(Config{})
	}
	config := d.Config
	config.Store, config.Sources = File(d.file(source)), []Source{source}
	return New(config)
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

// Prune deletes what is too old to be used.
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

// file is named by a sum: what sources are called has all kinds of characters.
func (d *Directory) file(source Source) string {
	sum := sha256.Sum256([]byte(source.Name()))
	return filepath.Join(d.Path, hex.EncodeToString(sum[:])+".json")
}
