package issuers

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"k8s.io/component-base/metrics"
)

// latency is the library's metric that has a label for each issuer.
const latency = "apiserver_authentication_jwt_authenticator_latency_seconds"

// BoundSeries gives issuers of the operator series of their own, and those of tenants, of whom
// there may be any number over time, one for all of them, "unexpected". It must be called before
// tokens are looked at, and is global to the process: later calls do nothing.
func BoundSeries(operators []string) { bound(operators) }

var bound = func() func([]string) {
	var once sync.Once
	return func(urls []string) {
		once.Do(func() {
			labels := []string{""}
			for _, url := range urls {
				labels = append(labels, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(url))))
			}
			metrics.SetLabelAllowList(map[string]string{latency + ",jwt_issuer_hash": strings.Join(labels, ",")})
		})
	}
}()
