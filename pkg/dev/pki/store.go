package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"
)

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour

	// renewBefore is how early a certificate is renewed. A development cluster may run for weeks.
	renewBefore = 30 * 24 * time.Hour

	// backdate is how far in the past a certificate becomes valid, because clocks of clients may be behind.
	backdate = time.Hour
)

// Store is a directory of certificates and keys. It is not safe for concurrent use, also not by two processes.
type Store struct {
	dir string
	now func() time.Time
	// Notes describes the renewed and replaced certificates, with the reasons.
	Notes []string
	// Made is the number of new authorities and certificates.
	Made int
}

// NewStore returns the store in dir, which must exist. now returns the current time.
func NewStore(dir string, now func() time.Time) *Store {
	return &Store{dir: dir, now: now}
}

// Pair is a certificate with its key.
type Pair struct {
	// CertFile and KeyFile are the paths of the files, CertPEM and KeyPEM their contents.
	CertFile, KeyFile string
	CertPEM, KeyPEM   []byte

	cert *x509.Certificate
	key  crypto.Signer
}

// Authority returns the certificate authority with a name, which is also its common name. It is created if it does
// not exist, and renewed with the same key if it is about to expire.
func (s *Store) Authority(name string) (*Pair, error) { return s.authority(name, newECKey) }

// RSAAuthority is like Authority, but creates an RSA key.
func (s *Store) RSAAuthority(name string) (*Pair, error) { return s.authority(name, newRSAKey) }

func (s *Store) authority(name string, create func() (crypto.Signer, error)) (*Pair, error) {
	pair, err := s.load(name)
	if err != nil {
		return nil, err
	}
	if pair.cert != nil && !pair.cert.IsCA {
		return nil, pair.corrupt(pair.CertFile, errors.New("it is not a certificate authority"))
	}
	reason := s.expiry(pair)
	if pair.cert != nil && reason == "" {
		return pair, nil
	}
	if err := s.issue(pair, authorityTemplate(name), create, nil, authorityLifetime); err != nil {
		return nil, fmt.Errorf("make certificate authority %s: %w", name, err)
	}
	s.note(name, reason)
	return pair, nil
}

// Key returns the file of a private key without a certificate. It is created if it does not exist.
func (s *Store) Key(name string) (file string, err error) {
	file = filepath.Join(s.dir, name+".key")
	content, err := readIfExists(file)
	if err != nil {
		return "", fmt.Errorf("read key: %w", err)
	}
	if content != nil {
		if _, err := parseKey(content); err != nil {
			return "", corrupt(file, err, "remove it to create a new key; everything that it has signed becomes invalid")
		}
		return file, nil
	}
	_, _, err = writeNewKey(file, newECKey)
	return file, err
}

// Certificate returns the certificate with a name, as specified, signed by ca. It is created if it does not exist. It is
// created again with the same key if it is about to expire, is signed by another authority, or differs from spec.
func (s *Store) Certificate(name string, ca *Pair, spec Spec) (*Pair, error) {
	pair, err := s.load(name)
	if err != nil {
		return nil, err
	}
	reason := s.expiry(pair)
	if pair.cert != nil && reason == "" {
		reason = spec.difference(pair.cert, ca.cert)
	}
	if pair.cert != nil && reason == "" {
		return pair, nil
	}
	if err := s.issue(pair, spec.template(), newECKey, ca, certificateLifetime); err != nil {
		return nil, fmt.Errorf("make certificate %s: %w", name, err)
	}
	s.note(name, reason)
	return pair, nil
}

// expiry returns why the pair's certificate, if any, must be renewed because of its age, or "".
func (s *Store) expiry(pair *Pair) string {
	if pair.cert == nil {
		return ""
	}
	remaining := pair.cert.NotAfter.Sub(s.now())
	switch {
	case remaining <= 0:
		return "it expired on " + pair.cert.NotAfter.Format(time.DateOnly)
	case remaining < renewBefore:
		return "it would have expired on " + pair.cert.NotAfter.Format(time.DateOnly)
	default:
		return ""
	}
}

func (s *Store) note(name, reason string) {
	if reason == "" {
		s.Made++
		return
	}
	s.Notes = append(s.Notes, fmt.Sprintf("certificate %s renewed: %s", name, reason))
}

// load reads a pair. Its cert is nil if it does not exist, and its key is nil if neither exists.
func (s *Store) load(name string) (*Pair, error) {
	pair := &Pair{
		CertFile: filepath.Join(s.dir, name+".crt"),
		KeyFile:  filepath.Join(s.dir, name+".key"),
	}
	var err error
	if pair.CertPEM, err = readIfExists(pair.CertFile); err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	if pair.KeyPEM, err = readIfExists(pair.KeyFile); err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if pair.KeyPEM == nil {
		if pair.CertPEM != nil {
			return nil, corrupt(pair.CertFile, errors.New("its key "+filepath.Base(pair.KeyFile)+" is missing"), "restore the key, or remove the certificate to create both again")
		}
		return pair, nil
	}
	if pair.key, err = parseKey(pair.KeyPEM); err != nil {
		return nil, pair.corrupt(pair.KeyFile, err)
	}
	if pair.CertPEM == nil {
		return pair, nil
	}
	if pair.cert, err = parseCertificate(pair.CertPEM); err != nil {
		return nil, pair.corrupt(pair.CertFile, err)
	}
	if !belongs(pair.cert, pair.key) {
		return nil, pair.corrupt(pair.CertFile, errors.New("it does not belong to "+filepath.Base(pair.KeyFile)))
	}
	return pair, nil
}

// corrupt returns the error for a file that cannot be used. advice describes how to fix it.
func corrupt(file string, err error, advice string) error {
	return fmt.Errorf("%s is corrupt (%w): %s", file, err, advice)
}

func (p *Pair) corrupt(file string, err error) error {
	return corrupt(file, err, fmt.Sprintf("remove %s and %s to create them again", filepath.Base(p.CertFile), filepath.Base(p.KeyFile)))
}

// issue signs template with ca, or with its own key if ca is nil. create generates the key if there is none.
func (s *Store) issue(pair *Pair, template *x509.Certificate, create func() (crypto.Signer, error), ca *Pair, lifetime time.Duration) error {
	if pair.key == nil {
		var err error
		if pair.key, pair.KeyPEM, err = writeNewKey(pair.KeyFile, create); err != nil {
			return err
		}
	}
	template.NotBefore = s.now().Add(-backdate)
	template.NotAfter = s.now().Add(lifetime)
	parent, signer := template, pair.key
	if ca != nil {
		parent, signer = ca.cert, ca.key
		if template.NotAfter.After(ca.cert.NotAfter) {
			template.NotAfter = ca.cert.NotAfter
		}
	}
	cert, certPEM, err := sign(template, parent, pair.key, signer)
	if err != nil {
		return err
	}
	if err := WriteFile(pair.CertFile, certPEM, 0o644); err != nil {
		return err
	}
	pair.cert, pair.CertPEM = cert, certPEM
	return nil
}

// writeNewKey creates a key and writes it to a file.
func writeNewKey(file string, create func() (crypto.Signer, error)) (key crypto.Signer, encoded []byte, err error) {
	if key, err = create(); err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	if encoded, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, encoded, WriteFile(file, encoded, 0o600)
}

// WriteFile writes a file atomically.
func WriteFile(path string, data []byte, mode fs.FileMode) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
		}
	}()
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func readIfExists(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if data == nil && err == nil {
		data = []byte{}
	}
	return data, err
}
