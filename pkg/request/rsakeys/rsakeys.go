// Package rsakeys limits the RSA keys of tenants, because the cost of cryptographic operations is quadratic or cubic.
package rsakeys

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
)

const (
	// maxBits limits a modulus, as crypto/tls does.
	//
	//reference:limit issuer | bits of a key | 401
	//reference:limit object =8,192 | `caBundle`, `certificateAuthority`, CertificateSigningRequest: bits of an RSA key | 422; 401
	//reference:limit object =8,192 | Secret: bits of an RSA key | a warning
	maxBits = 8192
	// maxPrivateBytes limits a private key, which may have any number of primes.
	//
	//reference:none
	maxPrivateBytes = 16 << 10
)

// Check returns an error if key is a large RSA key.
func Check(key crypto.PublicKey) error {
	if public, ok := key.(*rsa.PublicKey); ok {
		return check(public.N)
	}
	return nil
}

func check(numbers ...*big.Int) error {
	for _, n := range numbers {
		if n.BitLen() > maxBits {
			return fmt.Errorf("a key has %d bits, at most %d allowed", n.BitLen(), maxBits)
		}
	}
	return nil
}

// CheckBundle checks the keys of all certificates in PEM blocks.
func CheckBundle(content []byte) error {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			if err := Check(certificate.PublicKey); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckPrivate checks all private keys in PEM blocks. Parsers calculate powers modulo the first prime, even if it is
// larger than the modulus. At 4096 bits this takes 0.3 s.
func CheckPrivate(content []byte) error {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		var wrapped struct {
			Version   int
			Algorithm pkix.AlgorithmIdentifier
			Key       []byte
		}
		der := block.Bytes
		if _, err := asn1.Unmarshal(der, &wrapped); err == nil {
			der = wrapped.Key
		}
		var key struct {
			Version int
			N       *big.Int
			E       int
			D, P    *big.Int
		}
		if _, err := asn1.Unmarshal(der, &key); err != nil {
			continue // not an RSA key
		}
		if len(der) > maxPrivateBytes {
			return fmt.Errorf("a private key has %d bytes, at most %d allowed", len(der), maxPrivateBytes)
		}
		if err := check(key.N, new(big.Int).Mul(key.P, key.P)); err != nil {
			return err
		}
	}
	return nil
}
