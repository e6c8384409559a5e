package whole

func use(text string) string {
	name := (&lower{text: text}).grow()
	return name + helper()
}

func helper() string { return "" }
