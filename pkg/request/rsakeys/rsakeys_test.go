package rsakeys

import (
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckPrivate checks a key with a small modulus and a large prime.
func TestCheckPrivate(t *testing.T) {
	one := big.NewInt(1)
	der, err := asn1.Marshal([]*big.Int{one, one, one, one, new(big.Int).Lsh(one, maxBits/2), one})
	require.NoError(t, err)
	require.ErrorContains(t, CheckPrivate(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der})), "8193 bits")
}
