"""Play leaks and healthy series, and judge the forecasts of what runs out."""
