package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"slices"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Spec specifies a certificate.
type Spec struct {
	// CommonName is the user for a client certificate.
	CommonName string
	// Organizations are the groups for a client certificate.
	Organizations []string
	// DNSNames and IPs are the names of a serving certificate. Without them it is a client certificate.
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

// difference returns why cert does not match the spec or the authority, or "" if it does.
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

func newECKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newRSAKey() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) }

func sign(template, parent *x509.Certificate, key, signer crypto.Signer) (*x509.Certificate, []byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing: %w", err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parsing the signed certificate: %w", err)
	}
	return signed, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der}), nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	signer, ok := key.(crypto.Signer)
	if err == nil && !ok {
		err = fmt.Errorf("a %T cannot sign", key)
	}
	return signer, err
}

// belongs reports whether the certificate contains the public key of key.
func belongs(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && public.Equal(cert.PublicKey)
}
