package patterns

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// kept returns the bytes of all compiled patterns.
func kept() (sum int64) {
	for pattern := range load() {
		sum += Bytes(pattern)
	}
	return sum
}

// TestTrim: compiled patterns stay within the limit.
func TestTrim(t *testing.T) {
	const limit = 100 << 10
	b := NewBound(limit, nil)
	most := 0
	for i := range 2000 {
		require.Nil(t, validate.Pattern("", "", "a", fmt.Sprintf("^(a|b%d){1,3}$", i)))
		b.Trim()
		require.LessOrEqual(t, kept(), int64(limit))
		most = max(most, len(load()))
	}
	require.Greater(t, most, 10, "used patterns must remain compiled")

	require.Nil(t, validate.Pattern("", "", "a", "^((a|c){0,300}){0,3}$"))
	require.NotEmpty(t, load(), "the library must cache the pattern")
	b.Trim()
	require.Empty(t, load(), "a pattern above the limit must be removed")
	require.Nil(t, validate.Pattern("", "", "a", "^a$"), "patterns must be usable after Trim")
}

// TestTrimWhileUsed is for the race detector.
func TestTrimWhileUsed(t *testing.T) {
	b := NewBound(2000, nil)
	var users sync.WaitGroup
	for user := range 4 {
		users.Go(func() {
			for i := range 100 {
				if err := validate.Pattern("", "", "a", fmt.Sprintf("^a{1,%d}$", 1+(user+i)%20)); err != nil {
					t.Error(err)
				}
				b.Trim()
			}
		})
	}
	users.Wait()
	require.LessOrEqual(t, kept(), 2000+Bytes("^a{1,20}$"))
}

// TestBytes: the estimate depends on the program, not on the length of the pattern.
func TestBytes(t *testing.T) {
	require.Greater(t, Bytes("(.{100}){10}"), int64(1000*3*40))
	require.Less(t, Bytes("^abc$"), int64(4096))
	require.Positive(t, Bytes("("))
}
