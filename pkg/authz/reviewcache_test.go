package authz_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/test/heap"
)

// TestLongReviews checks that long user names do not take more memory, and that results are not mixed up.
func TestLongReviews(t *testing.T) {
	const many, long = 500, 64 << 10
	reviews, requests := authz.NewReviewCache(time.Hour, time.Hour), 0
	may := func(where string, n int) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", Groups: []string{strings.Repeat("x", long), fmt.Sprint(n)}}}
		allowed, err := reviews.May(t.Context(), where, review, func(context.Context) (bool, error) {
			requests++
			return where == "here" && n%2 == 0, nil
		})
		require.NoError(t, err)
		return allowed
	}
	before := heap.InUse()
	for n := range many {
		require.Equal(t, n%2 == 0, may("here", n))
	}
	require.Less(t, heap.InUse(), before+many*long/4)
	for n := range many {
		require.Equal(t, n%2 == 0, may("here", n))
	}
	require.Equal(t, many, requests)
	require.False(t, may("there", 0))
	runtime.KeepAlive(reviews)
}
