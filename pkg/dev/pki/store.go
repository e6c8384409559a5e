// Package pki manages a directory of certificate authorities and certificates for a development cluster. It
// creates missing ones, reuses existing ones, renews those about to expire, and rejects corrupt files.
//
// A certificate is stored in <name>.crt and its key in <name>.key, both as PEM. The key is written first: the next
// run completes an interrupted pair. A renewal keeps the key, so that no pair can mismatch, and certificates that a
// renewed authority has signed remain valid.
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

	certutil "k8s.io/client-go/util/cert"
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
func (s *Store) Authority(name string) (*Pair, error) {
	return s.ensure(name, Spec{CommonName: name}, nil, newECKey)
}

// RSAAuthority is like Authority, but creates an RSA key.
func (s *Store) RSAAuthority(name string) (*Pair, error) {
	return s.ensure(name, Spec{CommonName: name}, nil, newRSAKey)
}

// Key returns the file of a private key without a certificate. It is created if it does not exist.
func (s *Store) Key(name string) (file string, err error) {
	file = filepath.Join(s.dir, name+".key")
	content, err := readIfExists(file)
	if err != nil {
		return "", fmt.Errorf("reading the key: %w", err)
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
	return s.ensure(name, spec, ca, newECKey)
}

// ensure returns the authority with a name if ca is nil, or else a certificate. create generates the key if there is none.
func (s *Store) ensure(name string, spec Spec, ca *Pair, create func() (crypto.Signer, error)) (*Pair, error) {
	pair, err := s.load(name)
	if err != nil {
		return nil, err
	}
	kind := "certificate"
	if ca == nil {
		kind = "certificate authority"
	}
	if pair.cert == nil {
		s.Made++
	} else {
		if ca == nil && !pair.cert.IsCA {
			return nil, pair.corrupt(pair.CertFile, errors.New("it is not a certificate authority"))
		}
		reason := s.expiry(pair.cert)
		if reason == "" && ca != nil {
			reason = spec.difference(pair.cert, ca.cert)
		}
		if reason == "" {
			return pair, nil
		}
		s.Notes = append(s.Notes, fmt.Sprintf("certificate %s renewed: %s", name, reason))
	}
	if err := s.issue(pair, spec, ca, create); err != nil {
		return nil, fmt.Errorf("creating %s %s: %w", kind, name, err)
	}
	return pair, nil
}

// expiry returns why a certificate must be renewed because of its age, or "".
func (s *Store) expiry(cert *x509.Certificate) string {
	remaining := cert.NotAfter.Sub(s.now())
	switch {
	case remaining <= 0:
		return "it expired on " + cert.NotAfter.Format(time.DateOnly)
	case remaining < renewBefore:
		return "it would have expired on " + cert.NotAfter.Format(time.DateOnly)
	default:
		return ""
	}
}

// load reads a pair. Its cert is nil if it does not exist, and its key is nil if neither exists.
func (s *Store) load(name string) (*Pair, error) {
	pair := &Pair{
		CertFile: filepath.Join(s.dir, name+".crt"),
		KeyFile:  filepath.Join(s.dir, name+".key"),
	}
	var err error
	if pair.CertPEM, err = readIfExists(pair.CertFile); err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	if pair.KeyPEM, err = readIfExists(pair.KeyFile); err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
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
	certs, err := certutil.ParseCertsPEM(pair.CertPEM)
	if err != nil {
		return nil, pair.corrupt(pair.CertFile, err)
	}
	if pair.cert = certs[0]; !belongs(pair.cert, pair.key) {
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

// issue signs a certificate with ca, or an authority with its own key if ca is nil.
func (s *Store) issue(pair *Pair, spec Spec, ca *Pair, create func() (crypto.Signer, error)) error {
	if pair.key == nil {
		var err error
		if pair.key, pair.KeyPEM, err = writeNewKey(pair.KeyFile, create); err != nil {
			return err
		}
	}
	template := authorityTemplate(spec.CommonName)
	template.NotAfter = s.now().Add(authorityLifetime)
	parent, signer := template, pair.key
	if ca != nil {
		template, parent, signer = spec.template(), ca.cert, ca.key
		template.NotAfter = s.now().Add(certificateLifetime)
		if template.NotAfter.After(ca.cert.NotAfter) {
			template.NotAfter = ca.cert.NotAfter
		}
	}
	template.NotBefore = s.now().Add(-backdate)
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

func writeNewKey(file string, create func() (crypto.Signer, error)) (key crypto.Signer, encoded []byte, err error) {
	if key, err = create(); err != nil {
		return nil, nil, fmt.Errorf("generating a key: %w", err)
	}
	if encoded, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("encoding a key: %w", err)
	}
	return key, encoded, WriteFile(file, encoded, 0o600)
}

// WriteFile writes a file atomically.
func WriteFile(path string, data []byte, mode fs.FileMode) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
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
	return data, err
}
