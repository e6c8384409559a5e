package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "EC PRIVATE KEY"
)

// Spec says what a certificate is for.
type Spec struct {
	// CommonName is the user for a client certificate.
	CommonName string
	// Organizations are the groups for a client certificate.
	Organizations []string
	// DNSNames and IPs are what a serving certificate is valid for. A
	// certificate without any is a client certificate.
	DNSNames []string
	IPs      []net.IP
}

// Client returns the spec of a client certificate.
func Client(user string, groups ...string) Spec {
	return Spec{CommonName: user, Organizations: groups}
}

func (s Spec) usage() x509.ExtKeyUsage {
	if len(s.DNSNames)+len(s.IPs) > 0 {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

func (s Spec) template() *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: s.CommonName, Organization: s.Organizations},
		DNSNames:              s.DNSNames,
		IPAddresses:           s.IPs,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{s.usage()},
		BasicConstraintsValid: true,
	}
}

// difference says why cert is not what the spec and the authority ask for;
// empty where it is.
func (s Spec) difference(cert, ca *x509.Certificate) string {
	switch {
	case cert.CheckSignatureFrom(ca) != nil:
		return "its authority " + ca.Subject.CommonName + " has changed"
	case cert.Subject.CommonName != s.CommonName,
		!slices.Equal(cert.Subject.Organization, s.Organizations):
		return "it was for another user"
	case !slices.Equal(cert.DNSNames, s.DNSNames),
		!slices.EqualFunc(cert.IPAddresses, s.IPs, net.IP.Equal):
		return "it was for other host names"
	case !slices.Contains(cert.ExtKeyUsage, s.usage()):
		return "it was for another use"
	default:
		return ""
	}
}

func authorityTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("generate serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read back: %w", err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	if block.Type != pemKey {
		return nil, fmt.Errorf("holds a PEM block %q, not %q", block.Type, pemKey)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	if block.Type != pemCertificate {
		return nil, fmt.Errorf("holds a PEM block %q, not %q", block.Type, pemCertificate)
	}
	return x509.ParseCertificate(block.Bytes)
}
