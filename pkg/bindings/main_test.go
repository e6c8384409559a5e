package bindings

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leakRetrier{m}) }

// leakRetrier repeats the search for leaks, because tests may end while schemas are read. client-go retries after a
// second if the server is stopped.
type leakRetrier struct{ *testing.M }

func (p leakRetrier) Run() int {
	code := p.M.Run()
	for range 10 {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}
