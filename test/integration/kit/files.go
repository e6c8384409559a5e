package kit

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// WriteFile writes a file and returns its path.
func WriteFile(t *testing.T, dir, name, content string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// Exists reports whether a file exists.
func Exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// EncryptionConfig returns a configuration that encrypts secrets and cluster roles with the first provider, and decrypts with any.
func EncryptionConfig(providers string) string {
	return `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, clusterroles.rbac.authorization.k8s.io]
  providers: ` + providers + "\n"
}

// EncryptionKey is a provider for EncryptionConfig.
const EncryptionKey = "{aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}"

// StoredInFiles reports whether any file below a directory contains the text.
func StoredInFiles(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		return err
	}))
	return found
}
