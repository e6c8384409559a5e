package replicasnapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
