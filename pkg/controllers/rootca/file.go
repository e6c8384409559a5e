package rootca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
)

const dataKey = "ca.crt"

// pollInterval is a fallback for missing file system events, as in kube-apiserver.
const pollInterval = time.Minute

// File is a PEM file with certificates, which may change while it is used. If the new content is invalid, the previous one
// stays in use.
type File struct {
	path    string
	current atomic.Pointer[bundle]
}

// bundle is a version of the content.
type bundle struct {
	pem      []byte
	digest   string        // of a ConfigMap with this content
	replaced chan struct{} // closed when the content changes
}

// OpenFile reads the file. It returns an error if the file does not contain only certificates.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.load()
	return f, err
}

// Content returns the current content.
func (f *File) Content() []byte { return f.current.Load().pem }

// Run watches the file until ctx is done.
func (f *File) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("file", f.path)
	filesystem.WatchUntil(ctx, pollInterval, f.path, func() {
		switch changed, err := f.load(); {
		case err != nil:
			logger.Error(err, "Failed to load the root CA; the previous content stays in use")
		case changed:
			logger.Info("Reloaded the root CA")
		}
	}, nil)
	return nil
}

func (f *File) load() (changed bool, err error) {
	content, err := os.ReadFile(f.path)
	if err != nil {
		return false, err
	}
	old := f.current.Load()
	if old != nil && bytes.Equal(old.pem, content) {
		return false, nil
	}
	if err := check(content); err != nil {
		return false, fmt.Errorf("%s: %w", f.path, err)
	}
	f.current.Store(&bundle{pem: content, digest: digest(map[string]string{dataKey: string(content)}), replaced: make(chan struct{})})
	if old != nil {
		close(old.replaced)
	}
	return true, nil
}

func digest(data map[string]string) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		_, _ = fmt.Fprintf(h, "%d %s %d %s ", len(key), key, len(data[key]), data[key])
	}
	return string(h.Sum(nil))
}

// check rejects files with other content than certificates, because it would be visible to all tenants, e.g. a private key.
func check(content []byte) error {
	found := false
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it contains a %s, but must contain only certificates, because all tenants can read it", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("it contains an invalid certificate: %w", err)
		}
		found = true
	}
	if !found {
		return errors.New("it contains no PEM certificate")
	}
	return nil
}
