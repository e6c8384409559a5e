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

// pollInterval is how often the file is looked at where nothing has announced a
// change, as in kube-apiserver.
const pollInterval = time.Minute

// File is a PEM file of certificates that may change while it is used. What it held
// last stays in use when it cannot be used any more.
type File struct {
	path    string
	current atomic.Pointer[bundle]
}

// bundle is what the file held at some time.
type bundle struct {
	pem []byte
	// digest is that of a ConfigMap with it.
	digest string
	// replaced is closed when the file holds something else.
	replaced chan struct{}
}

// OpenFile reads the file, and fails if it does not hold certificates, and nothing else.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.load()
	return f, err
}

// Content returns what the file holds.
func (f *File) Content() []byte { return f.current.Load().pem }

// Run follows the file until ctx ends.
func (f *File) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("file", f.path)
	filesystem.WatchUntil(ctx, pollInterval, f.path, func() {
		switch changed, err := f.load(); {
		case err != nil:
			logger.Error(err, "The file with the root CA cannot be used; what it held before stays in use")
		case changed:
			logger.Info("The root CA has changed")
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

// digest identifies the data of a ConfigMap.
func digest(data map[string]string) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		_, _ = fmt.Fprintf(h, "%d %s %d %s ", len(key), key, len(data[key]), data[key])
	}
	return string(h.Sum(nil))
}

// check holds that everybody may read the content: a private key that stands in the
// same file would be shown to all tenants.
func check(content []byte) error {
	found := false
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it holds a %s, and may hold certificates only: everybody can read it", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("it holds a certificate that cannot be read: %w", err)
		}
		found = true
	}
	if !found {
		return errors.New("it holds no certificate in PEM")
	}
	return nil
}
