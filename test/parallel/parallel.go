// Package parallel sets how many tests of a package run at a time.
package parallel

import (
	"flag"
	"strconv"
)

// Set runs n tests of a package at a time, unless -parallel is set. TestMain calls it if the
// tests mostly wait: go test runs only as many as there are processors.
func Set(n int) {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if isSet {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
